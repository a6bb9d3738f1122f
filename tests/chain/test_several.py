"""The same on each of several boxes, of which nothing is known but a line in the ssh config."""

import json

import pytest

from tests.chain.kit import check_sums, fab

pytestmark = [pytest.mark.box, pytest.mark.engine, pytest.mark.slow]

# A program of somebody's own: it keeps the contract by its folders alone.
PROGRAM = """
import hashlib, json, os, signal, sys, time
out = os.environ["GPUBOX_OUTPUT"]
checkpoints = os.path.join(out, "checkpoints")
os.makedirs(checkpoints, exist_ok=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
seen = sorted(os.listdir(os.environ["GPUBOX_INPUT"]))
for step in range(1, 100000):
    if step == 1:
        folder = os.path.join(checkpoints, ".part")
        os.makedirs(folder)
        content = json.dumps(seen).encode()
        open(os.path.join(folder, "seen.json"), "wb").write(content)
        digest = hashlib.sha256(content).hexdigest()
        open(os.path.join(folder, "SHA256SUMS"), "w").write(digest + "  seen.json\\n")
        os.rename(folder, os.path.join(checkpoints, "step_00000001"))
    new = os.path.join(out, "progress.json.new")
    open(new, "w").write(json.dumps({"schema": 1, "step": step}))
    os.replace(new, os.path.join(out, "progress.json"))
    time.sleep(0.5)
"""


def test_deploy_fetch_and_stop_on_two_boxes_at_once(boxes, tmp_path):
    code, pictures = tmp_path / "code", tmp_path / "pictures"
    code.mkdir(), pictures.mkdir()
    (code / "train.py").write_text(PROGRAM)
    for number in range(30):
        (pictures / f"{number:02}.png").write_bytes(bytes([number]) * 1000)
    boxes.more = f"""
[data.pictures]
path = {json.dumps(str(pictures))}
[run]
data = "pictures"
code = {json.dumps(str(code))}
command = ["python", "train.py"]
"""
    for name in ("one", "two"):
        boxes.start(
            "process", name=name, user="dev", disks=False, toml="python = '/usr/bin/python3'"
        )

    started = fab("deploy", "-H", "one,two", "--json")
    assert [(each["box"], each["outcome"]) for each in started] == [
        ("one", "first-step"),
        ("two", "first-step"),
    ]
    assert all("/home/dev/gpubox/data/runs/" in each["folder"] for each in started)
    assert started[0]["version"] == started[1]["version"], "a version is named by its content"

    assert states_of("one", "two") == ["running", "running"]

    for home in fab("fetch", "-H", "one,two", "--to", str(tmp_path / "home"), "--json"):
        checkpoint = tmp_path / "home" / home["id"] / "output/checkpoints/step_00000001"
        check_sums(checkpoint)
        assert json.loads((checkpoint / "seen.json").read_text())[0] == "00.png"

    fab("stop", "-H", "one,two")
    assert states_of("one", "two") == ["stopped", "stopped"]


def states_of(*names):
    return [
        fab("status", "--host", name, "--json")[0]["runs"][0]["state"]["state"] for name in names
    ]


def test_a_box_that_does_not_answer_hinders_no_other_and_is_an_error(boxes):
    boxes.start("process", name="one", user="dev")
    gone = boxes.start("process", name="gone", user="dev")
    gone.pull_the_plug()
    silent, fine = fab("facts", "-H", "gone,one", "--json", code=11)
    assert (silent["box"], silent["error"]["kind"]) == ("gone", "ConnectError")
    assert (fine["box"], fine["host"]) == ("one", "one")
