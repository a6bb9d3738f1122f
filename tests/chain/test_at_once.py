"""Two whole deploys to one box at the same instant, from two shells: one run, and both say so."""

import json
import subprocess
import sys
import textwrap

import pytest

from tests.chain.kit import FAB, ROOT, fab

pytestmark = [pytest.mark.sshd, pytest.mark.slow]
PROGRAM = """
import json, os, time
for step in range(1, 100000):
    path = os.path.join(os.environ["GPUBOX_OUTPUT"], "progress.json")
    with open(path + ".tmp", "w") as file:
        json.dump({"schema": 1, "step": step, "steps": 100000}, file)
    os.replace(path + ".tmp", path)
    time.sleep(0.1)
"""


def test_two_deploys_at_the_same_instant_are_one_run(sshd, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one").write_bytes(bytes(300_000))
    toml = f"""
        runner = "process"
        device = "cpu"
        python = "{sys.executable}"
        [data.small]
        path = "{tmp_path / "set"}"
        [run]
        data = "small"
        code = "{tmp_path / "code"}"
        command = ["python", "train.py"]
    """
    sshd(toml=textwrap.dedent(toml))
    words = [str(FAB), "deploy", "--host", "box", "--json"]
    deploys = [
        subprocess.Popen(
            words, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        answers = [json.loads(each.communicate(timeout=240)[0]) for each in deploys]
        assert [each.returncode for each in deploys] == [0, 0], answers
        first, second = sorted(
            (answer["results"][0] for answer in answers), key=lambda each: each["action"] != "new"
        )
        assert (first["action"], second["action"]) == ("new", "attach")
        assert first["id"] == second["id"] and first["version"] == second["version"]
        (found,) = fab("status", "--host", "box", "--json")
        assert [each["id"] for each in found["runs"]] == [first["id"]]
        (lock,) = fab("unlock", "--host", "box", "--json")
        assert lock["held"] is False
    finally:
        fab("stop", "--host", "box", "--now")
        fab("idle", "--host", "box", "--disarm")
