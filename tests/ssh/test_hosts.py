"""One call for several boxes, however they are named on the command line; and a light `fab --list`."""

import json
import subprocess
import sys

import pytest

FAB = [sys.executable, "-m", "fabric"]


@pytest.mark.sshd
@pytest.mark.parametrize(
    "words",
    [
        ["-H", "a,b", "facts"],
        ["facts", "-H", "a,b"],
        ["facts", "--hosts", "a,b"],
        ["--hosts", "a,b", "facts"],
        ["-H", "a", "facts", "--host", "b"],
        ["-H", "a,b", "facts", "-H", "b,a"],
    ],
    ids=" ".join,
)
def test_every_way_to_name_two_boxes_is_one_call_with_both(sshd, words):
    sshd("a"), sshd("b")
    done = subprocess.run([*FAB, *words, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)  # one document: one call
    assert sorted(each["box"] for each in answer["results"]) == ["a", "b"]


def test_listing_the_verbs_imports_no_more_than_fabric_itself():
    script = (
        "import sys, fabric.main; before = set(sys.modules); sys.path.insert(0, '.');"
        "import fabfile; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    new = set(done.stdout.split())
    assert "deploy.command" in new, done.stderr
    heavy = ("rich", "docker", "requests", "deploy.verbs", "deploy.effects", "deploy.onbox")
    assert not [name for name in new if name.startswith(heavy)]


def test_a_fault_is_one_line_a_hint_and_its_own_exit_code(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBOX_CONFIG", str(tmp_path / "gpubox.toml"))
    (tmp_path / "gpubox.toml").write_text("boxs = 1\n")
    done = subprocess.run([*FAB, "facts"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == ["error: boxs: unknown key", "  did you mean boxes?"]
