"""fab doctor's judgement: facts in, checks with verdict and remedy out."""

import copy

import pytest

from deploy.plan.check import Check, worst
from deploy.plan.config import Box
from deploy.plan.doctor import Way, checks

GIB = 1 << 30
CARD = {"name": "A100", "memory_mib": "81920", "driver": "550.54.15", "capability": "8.0"}
DISK = {"type": "ext4", "network": False, "write_rate": 5e8, "file_seconds": 1e-4}
PLACE = {"device": 1, "free": 500 * GIB, "free_inodes": 10**7, "total_inodes": 10**8}
GOOD = {
    "system": {"machine": "x86_64", "os": "Debian GNU/Linux 13 (trixie)"},
    "python": {"path": "/usr/bin/python3", "version": "3.13.5"},
    "login": {"user": "ubuntu", "shell": "/bin/bash", "root": False, "sudo": True},
    "cpus": 8,
    "memory": 64 * GIB,
    "memory_limit": 0,
    "shm": 32 * GIB,
    "container": False,
    "data_disk": {"path": "/data", **DISK, "type": "nfs4", "network": True},
    "input_disk": {"path": "/input", **DISK},
    "places": {"data": PLACE, "input": {**PLACE, "device": 2}},
    "engine": {
        "present": True,
        "answers": True,
        "version": "26.1.5",
        "compose": "2.26.1-4",
        "group": "member",
        "disk": {"path": "/var/lib/docker", "free": 200 * GIB},
        "gpu_try": {"given": True, "said": ""},
        "image": {"name": "gpubox/gpu:latest", "sees_gpu": True, "report": {}},
    },
    "gpus": {"present": True, "on_bus": 1, "cards": [CARD], "why": ""},
    "reach": {"apt": {"http://a": ""}, "pip": {"https://b": ""}},
}
WAY = Way("gpu", "u@h:22", 0.8, "the system's ssh", "known in known_hosts", b"", 0.2)


def changed(path, value):
    """GOOD with one value changed, named by its path with dots."""
    facts = copy.deepcopy(GOOD)
    *folders, last = path.split(".")
    place = facts
    for each in folders:
        place = place[each]
    place[last] = value
    return facts


def named(found, name):
    return next(check for check in found if check.name == name)


def test_a_good_box_has_nothing_to_mend():
    found = checks(GOOD, WAY, Box())
    assert {check.verdict for check in found} == {"ok"}
    assert not [check for check in found if check.remedy]
    assert worst(found).verdict == "ok"


NO_DRIVER = {"present": True, "on_bus": 2, "cards": [], "why": "no nvidia-smi"}
NO_ENGINE = {"present": False, "answers": False, "why": "no docker program on this box"}
STOPPED = {"present": True, "answers": False, "why": "the Docker daemon does not answer this user"}
NO_TOOLKIT = {
    "given": False,
    "said": 'could not select device driver "" with capabilities: [[gpu]]',
}
BLIND = {"name": "i", "sees_gpu": False, "report": {"message": "no library is missing"}}
NO_IMAGE = {"name": "", "sees_gpu": None, "report": {}}
SILENT = {"apt": {"http://mirror": "timed out"}, "pip": {}}
CASES = [
    ("login.sudo", False, "root", "warn", "ask its owner"),
    ("login.shell", "/usr/bin/fish", "shell", "ok", ""),
    ("memory", 2 * GIB, "memory", "warn", "larger box"),
    ("memory_limit", 2 * GIB, "memory", "warn", "larger box"),
    ("places.data.free", 2 * GIB, "data", "warn", "fab prune"),
    ("places.data.free_inodes", 500, "data", "warn", "inodes"),
    ("input_disk.network", True, "input", "warn", "boxes.gpu.input"),
    ("places.input.device", 1, "input", "note", "no copy is needed"),
    ("data_disk", {"unknown": "OSError: stale handle"}, "data", "unknown", "fab shell"),
    ("engine", NO_ENGINE, "engine", "bad", "fab bootstrap --host gpu"),
    ("engine", STOPPED, "engine", "bad", "systemctl start docker"),
    ("engine.compose", "1.29.2", "compose", "bad", "fab bootstrap"),
    ("engine.compose", "", "compose", "bad", "2.20 or newer"),
    ("engine.group", "after a new login", "docker group", "warn", "log in again"),
    ("engine.disk.free", GIB, "engine's disk", "bad", "docker system prune"),
    ("engine.gpu_try", NO_TOOLKIT, "toolkit", "bad", "container toolkit is missing"),
    ("engine.image", BLIND, "TensorFlow", "bad", "rows above"),
    ("engine.image", NO_IMAGE, "TensorFlow", "unknown", "fab deploy"),
    ("gpus", NO_DRIVER, "GPU", "bad", "driver is missing"),
    ("gpus.cards", [{**CARD, "driver": "470.82.01"}], "driver", "bad", "525.60.13 or newer"),
    ("gpus.cards", [{**CARD, "driver": "525.60.13"}], "driver", "ok", ""),
    ("gpus.cards", [{**CARD, "capability": "12.0"}], "driver", "bad", "570.26 or newer"),
    ("gpus.cards", [{**CARD, "capability": "5.2"}], "capability", "bad", "start at 6.0"),
    ("gpus.cards", [{**CARD, "capability": "9.0"}], "capability", "note", "half an hour"),
    ("gpus.cards", [{**CARD, "capability": ""}], "capability", "unknown", "driver"),
    ("reach", SILENT, "package sources", "warn", "through this machine"),
]


@pytest.mark.parametrize("path,value,name,verdict,remedy", CASES)
def test_each_fault_has_its_verdict_and_remedy(path, value, name, verdict, remedy):
    check = named(checks(changed(path, value), WAY, Box()), name)
    assert check.verdict == verdict
    assert remedy in check.remedy if remedy else not check.remedy


@pytest.mark.parametrize("device,verdict", [("auto", "note"), ("gpu", "bad"), ("cpu", "ok")])
def test_no_gpu_is_bad_only_where_one_is_asked_for(device, verdict):
    facts = changed("gpus", {"present": False, "on_bus": 0, "cards": [], "why": "no nvidia-smi"})
    check = named(checks(facts, WAY, Box(device=device)), "GPU")
    assert check.verdict == verdict
    assert verdict != "bad" or check.kind == "GpuError"


def test_a_box_that_is_a_container_needs_no_engine():
    facts = changed("engine", NO_ENGINE)
    facts["container"] = True
    assert named(checks(facts, WAY, Box()), "engine").verdict == "note"


@pytest.mark.parametrize(
    "found,verdict,words",
    [
        ({"path": "/opt/conda/bin/python", "tensorflow": "2.21.0", "gpus": 1}, "ok", "sees 1"),
        (
            {"path": "/opt/conda/bin/python", "tensorflow": "2.21.0", "gpus": 0},
            "warn",
            "sees no GPU",
        ),
        ({"path": ""}, "note", "makes its own"),
    ],
)
def test_where_runs_are_processes_the_boxs_own_tensorflow_counts(found, verdict, words):
    facts = changed("engine", NO_ENGINE)
    facts["tensorflow"] = found
    check = named(checks(facts, WAY, Box()), "TensorFlow")
    assert check.verdict == verdict and words in check.value


@pytest.mark.parametrize(
    "fields,name,verdict",
    [
        ({"clock_offset": 4000.0}, "clock", "warn"),
        ({"clock_offset": -31.0}, "clock", "warn"),
        ({"clock_offset": 29.0}, "clock", "ok"),
        ({"noise": b"Welcome to \x1b[1mACME"}, "login", "note"),
        ({"seconds": 9.0}, "SSH", "warn"),
    ],
)
def test_what_only_the_laptop_knows(fields, name, verdict):
    assert named(checks(GOOD, WAY._replace(**fields), Box()), name).verdict == verdict


def test_the_worst_is_the_first_of_the_worst_kind():
    found = [Check("a", ""), Check("b", "", "bad", "", "GpuError"), Check("c", "", "bad")]
    assert worst(found).name == "b"
    assert worst([]) is None
