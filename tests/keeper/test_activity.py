"""Activity leases: there while the work goes on, gone after it, never held by a dead process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.onbox.activity import active, leases_folder, read_leases


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBOX_HOME", str(tmp_path / "home"))


def leases():
    return [name for name in os.listdir(leases_folder()) if name != ".ended"]


def test_a_lease_lies_there_while_the_block_runs():
    with active("upload of photos"):
        with active("upload of photos"):
            assert [lease["why"] for lease in read_leases()] == ["upload of photos"] * 2
        assert len(read_leases()) == 1
    assert read_leases() == []


def test_a_hostile_name_stays_in_the_folder():
    with active("../../etc/$(touch PWN)\n"):
        names = leases()
        assert len(names) == 1 and "/" not in names[0] and "$" not in names[0]
        assert len(read_leases()) == 1


def test_the_lease_goes_when_the_work_fails():
    with pytest.raises(KeyError):
        with active("fetch"):
            raise KeyError("x")
    assert leases() == []


def test_the_lease_of_a_killed_process_is_removed():
    script = (
        "import os, signal, deploy.onbox.activity as a\n"
        "with a.active('build'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert len(leases()) == 1
    assert read_leases() == []
    assert leases() == []
