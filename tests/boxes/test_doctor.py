"""fab doctor on real boxes behind a real sshd: one table, one JSON document, one exit code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.errors import ConnectError, GpuError, HostKeyError

pytestmark = pytest.mark.sshd
DOCTOR = [sys.executable, "-m", "fabric", "doctor"]


def run(*words):
    return subprocess.run([*DOCTOR, *words], capture_output=True, text=True, timeout=200)


def checks_of(done):
    (result,) = json.loads(done.stdout)["results"]
    return {check["name"]: check for check in result["checks"]}


def test_a_box_is_examined_over_one_connection(sshd):
    server = sshd(banner="Welcome", login="dash")
    done = run("--host", "box", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = checks_of(done)
    assert found["SSH"]["value"].endswith("bulk data by the system's ssh")
    assert found["login"]["value"] == "prints 'Welcome' on stdout"
    assert found["clock"]["value"] == "right"
    assert found["data"]["value"].startswith(f"{server.data}: local (")
    assert found["input"]["remedy"] == "no copy is needed"
    assert (server.folder / "log").read_text().count("Accepted publickey") == 1
    assert not list(server.data.glob(".gpubox-try-*"))  # the trial files are gone


def test_a_box_that_must_have_a_gpu_and_has_none_ends_with_that_code(sshd):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    sshd(toml='device = "gpu"')
    done = run("--host", "box")
    assert done.returncode == GpuError.exit_code
    assert "✗  GPU" in done.stdout


def test_several_boxes_that_cannot_be_reached_are_rows_and_the_others_still_examined(sshd):
    off, changed, _ = sshd("off"), sshd("changed"), sshd("fine")
    off.stop(), changed.run_sshd("B")
    done = run("-H", "off,changed,fine", "--json")
    results = {each["box"]: each for each in json.loads(done.stdout)["results"]}
    assert results["off"]["checks"][0]["kind"] == "ConnectError"
    assert "ssh-keygen -R" in results["changed"]["checks"][0]["remedy"]
    assert len(results["fine"]["checks"]) > 15 and results["fine"]["verdict"] != "bad"
    assert done.returncode == max(ConnectError.exit_code, HostKeyError.exit_code)


SMI = """#!/bin/sh
case "$*" in
*compute_cap*) echo "GPU-1, 8.0" ;;
*) echo "GPU-1, NVIDIA A100, 81920, 550.54.15" ;;
esac
"""
HOOK = Path(__file__).resolve().parents[1] / "fakes" / "nvidia-container-runtime-hook"


@pytest.mark.engine
@pytest.mark.box
@pytest.mark.slow
@pytest.mark.parametrize("toolkit", [True, False], ids=["toolkit", "no toolkit"])
def test_whether_a_container_gets_a_gpu_is_tried_for_real(boxes, tmp_path, toolkit):
    """The engine's real path with a fake driver: without the toolkit one line, and no GPU."""
    (tmp_path / "fake").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / "fake" / name).touch()
    hook = ["--volume", f"{HOOK}:/usr/bin/nvidia-container-runtime-hook:ro"]
    more = [*(hook if toolkit else []), "--volume", f"{tmp_path}/fake:/opt/fake:ro"]
    box = boxes.start("engine", user="dev", more=more)
    box.run(
        "sh", "-c", "cat >/usr/local/bin/nvidia-smi; chmod +x /usr/local/bin/nvidia-smi", input=SMI
    )
    done = run("--host", box.name, "--json")
    found = checks_of(done)
    assert found["GPU"]["value"] == "NVIDIA A100, 81920 MiB"
    assert found["TensorFlow"]["verdict"] == "unknown"  # no image of ours is there yet
    assert not box.run("docker", "image", "ls", "--quiet").stdout  # and none was left
    if toolkit:
        assert found["toolkit"]["value"] == "a container gets the GPUs (tried)"
        assert done.returncode == 0
    else:
        assert "container toolkit is missing" in found["toolkit"]["remedy"]
        assert "could not select" not in done.stdout
        assert done.returncode == GpuError.exit_code


def test_the_users_own_packages_are_a_row_and_a_missing_list_is_bad(sshd):
    server = sshd()
    text = server.boxes.toml.read_text()
    server.boxes.toml.write_text(text + '[run]\nrequirements = "own.txt"\n')
    (server.boxes.toml.parent / "own.txt").write_text("# mine\ntoolz==1.0.0\nsix\n")
    found = checks_of(run("--host", "box", "--json"))
    assert found["packages"]["value"].startswith("2 of your own from own.txt")
    (server.boxes.toml.parent / "own.txt").unlink()
    done = run("--host", "box", "--json")
    assert checks_of(done)["packages"]["verdict"] == "bad" and done.returncode == 2
