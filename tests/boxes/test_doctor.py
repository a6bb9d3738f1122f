"""fab doctor on real boxes behind a real sshd: one table, one JSON document, one exit code."""

import json
import shutil
import subprocess
import sys

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
