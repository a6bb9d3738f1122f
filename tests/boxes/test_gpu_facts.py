"""What a box says of its GPUs, with programs in nvidia-smi's place: absent, unknown and broken differ."""

import pytest

from deploy.onbox import gpu_facts
from deploy.onbox.engine_facts import given

SMI = """#!/bin/sh
case "$*" in
*compute_cap*) [ -z "$OLD" ] || { echo 'Field "compute_cap" is not a valid field to query.'; exit 2; }
  echo "GPU-1, 8.0";;
*) echo "GPU-1, NVIDIA A100, 81920, 550.54.15";;
esac
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    def install(script):
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_a_card_with_all_that_is_known(smi):
    smi(SMI)
    (card,) = gpu_facts.gpus()["cards"]
    assert card == {
        "uuid": "GPU-1",
        "name": "NVIDIA A100",
        "memory_mib": "81920",
        "driver": "550.54.15",
        "capability": "8.0",
    }


def test_an_old_driver_that_does_not_know_the_capability_still_lists_its_card(smi, monkeypatch):
    smi(SMI)
    monkeypatch.setenv("OLD", "1")
    (card,) = gpu_facts.gpus()["cards"]
    assert (card["driver"], card["capability"]) == ("550.54.15", "")


@pytest.mark.parametrize(
    "script,why",
    [
        ("#!/bin/sh\necho 'Failed to initialize NVML: Unknown Error'; exit 255", "Failed to init"),
        ("#!/bin/sh\nexit 0", "lists no card"),
        ("#!/bin/sh\necho '[N/A]'", "lists no card"),
        ("not a program", "nvidia-smi says"),
    ],
)
def test_a_driver_that_does_not_answer_says_why(smi, script, why):
    smi(script)
    found = gpu_facts.gpus()
    assert found["cards"] == [] and why in found["why"]


def test_nvidia_smi_that_hangs_is_given_up(smi, monkeypatch):
    smi("#!/bin/sh\nexec sleep 60")
    monkeypatch.setattr(gpu_facts, "PATIENCE", 0.2)
    assert gpu_facts.gpus()["why"] == "nvidia-smi hangs"


@pytest.mark.parametrize(
    "code,said,wanted",
    [
        (127, 'exec: "/nothing": stat /nothing: no such file or directory: unknown', True),
        (125, 'could not select device driver "" with capabilities: [[gpu]]', False),
        (127, "nvidia-container-cli: initialization error: libnvidia-ml.so.1: no such file", False),
        (125, "no space left on device", None),
        (-1, "timed out", None),
    ],
)
def test_what_an_engine_says_tells_whether_it_gave_the_gpus(code, said, wanted):
    assert given(code, said) is wanted
