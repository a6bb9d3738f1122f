"""fab bootstrap's plan: facts in, steps out, each with its reason; what is right already stays."""

import copy
import subprocess
import sys

import pytest

from deploy.onbox import survey
from deploy.plan.bootstrap import Command, plan, through

FOLDER = {"there": True, "owner": "ubuntu", "writable": True, "empty": True}
CARD = {"name": "A100", "driver": "550.54.15"}
READY = {
    "system": {"id": "debian", "version": "13", "name": "Debian 13", "machine": "x86_64"},
    "container": False,
    "systemd": True,
    "login": {"user": "ubuntu", "group": "ubuntu", "root": False, "sudo": True},
    "engine": {
        "present": True,
        "answers": True,
        "version": "26.1.5",
        "compose": "2.26.1-4",
        "group": "member",
        "gives_gpu": True,
        "running": 0,
        "why": "",
    },
    "gpus": {"present": True, "on_bus": 1, "cards": [CARD], "why": ""},
    "packages": {"docker.io": "26.1.5", "docker-ce": "", "nvidia-container-toolkit": "1.17"},
    "candidate": {"nvidia-container-toolkit": ""},
    "apt": True,
    "apt_uris": ["http://mirror/debian"],
    "cloud_init": "status: done",
    "locks": [],
    "venv": True,
    "folders": {"data": {**FOLDER, "path": "/data"}, "input": {**FOLDER, "path": "/input"}},
    "unmounted": [],
}
NONE = {"present": False, "answers": False, "group": "none", "gives_gpu": False, "why": "no docker"}
NO_PACKAGES = {"docker.io": "", "docker-ce": "", "nvidia-container-toolkit": ""}


def facts(**changes):
    """READY with some of its values changed; `a__b=1` is a value one level down."""
    found = copy.deepcopy(READY)
    for path, value in changes.items():
        *above, last = path.split("__")
        place = found
        for each in above:
            place = place[each]
        place[last] = value
    return found


def bare(system, version, **changes):
    where = {
        "system__id": system,
        "system__version": version,
        "system__name": f"{system} {version}",
    }
    return facts(engine=dict(NONE), packages=dict(NO_PACKAGES), **where, **changes)


def step(found, name):
    return next(each for each in plan(found, "gpu") if each.name == name)


def installs(found, name="engine"):
    """The packages that a step installs, its options left out."""
    (command,) = [
        c for c in step(found, name).commands if "install" in c.argv and "apt-get" in c.argv
    ]
    words = command.argv[command.argv.index("install") + 1 :]
    return [word for word in words if not word.startswith("-")]


def test_a_box_that_is_ready_is_left_alone():
    assert not [each for each in plan(READY, "gpu") if each.commands or each.by_hand]


@pytest.mark.parametrize(
    "system,version,packages",
    [
        ("debian", "13", ["docker.io", "docker-cli", "docker-compose", "docker-buildx", "zstd"]),
        ("ubuntu", "22.04", ["docker.io", "docker-compose-v2", "docker-buildx", "zstd"]),
        ("ubuntu", "24.04", ["docker.io", "docker-compose-v2", "docker-buildx", "zstd"]),
    ],
)
def test_each_distribution_has_its_packages(system, version, packages):
    assert installs(bare(system, version)) == packages


def test_debian_12_takes_them_from_the_next_release_of_its_own_mirror_and_nothing_else():
    found = step(bare("debian", "12"), "engine")
    source, pin, update, install = found.commands
    assert "URIs: http://mirror/debian\nSuites: trixie\n" in source.stdin
    assert "Pin-Priority: 100" in pin.stdin
    assert update.argv[-1] == "update"
    assert "-t" not in install.argv  # that would take all that they need from there as well
    assert installs(bare("debian", "12")) == [
        "docker.io/trixie",
        "docker-cli/trixie",
        "docker-compose/trixie",
        "docker-buildx/trixie",
        "zstd",
    ]


def test_debian_12_with_compose_1_gets_a_new_one():
    found = bare("debian", "12")
    found["engine"] = {**READY["engine"], "version": "20.10.24", "compose": ""}
    assert "compose 2.20 or newer is missing" in step(found, "engine").why
    assert "docker-compose/trixie" in installs(found)


def test_an_engine_from_dockers_own_source_keeps_to_it():
    found = facts(engine__compose="", packages__docker_ce="")
    found["packages"]["docker-ce"] = "27.1"
    assert installs(found) == ["docker-compose-plugin", "docker-buildx-plugin", "zstd"]


@pytest.mark.parametrize(
    "found",
    [bare("fedora", "41"), bare("debian", "11"), bare("debian", "12", apt_uris=[]), bare("", "")],
    ids=["fedora", "debian 11", "no mirror known", "no name"],
)
def test_other_systems_get_a_list_of_what_to_do_by_hand(found):
    how = step(found, "engine")
    assert not how.commands and "install Docker with Compose 2.20" in how.by_hand


def test_an_engine_that_is_only_stopped_is_started_not_installed():
    found = facts(engine__answers=False)
    names = [each.name for each in plan(found, "gpu") if each.commands]
    assert names == ["start"]


@pytest.mark.parametrize("group,command", [("no", ("usermod",)), ("after a new login", ())])
def test_who_may_not_use_the_engine_joins_its_group_and_logs_in_again(group, command):
    found = step(facts(engine__answers=False, engine__group=group), "group")
    assert tuple(each.argv[0] for each in found.commands) == command
    assert found.new_login


def test_without_root_every_command_becomes_work_by_hand():
    found = facts(engine__answers=False, login__sudo=False)
    steps = plan(found, "gpu")
    assert not [each for each in steps if each.commands]
    assert "as root on gpu: systemctl enable --now docker" in step(found, "start").by_hand


@pytest.mark.parametrize(
    "changes,name,words",
    [
        ({"gpus__cards": [], "gpus__why": "no nvidia-smi"}, "GPU driver", "nvidia-driver"),
        (
            {"engine__gives_gpu": False, "packages": NO_PACKAGES},
            "toolkit",
            "NVIDIA's package source",
        ),
        (
            {"unmounted": [{"name": "/dev/sdb", "size": 1 << 40, "fstype": None}]},
            "disk",
            "mount it",
        ),
        (
            {"folders__data__writable": False, "folders__data__empty": False},
            "data",
            "boxes.NAME.data",
        ),
    ],
)
def test_what_only_a_person_can_do_is_named(changes, name, words):
    found = step(facts(**changes), name)
    assert not found.commands and words in found.by_hand


def test_the_toolkit_is_installed_where_a_source_has_it_and_set_up_either_way():
    found = facts(engine__gives_gpu=False, packages=NO_PACKAGES)
    found["candidate"]["nvidia-container-toolkit"] = "1.17.8"
    assert installs(found, "toolkit") == ["nvidia-container-toolkit"]
    assert [c.argv[0] for c in step(facts(engine__gives_gpu=False), "toolkit").commands] == [
        "nvidia-ctk",
        "systemctl",
    ]


def test_an_engine_that_works_is_not_restarted_under_its_containers():
    found = step(facts(engine__gives_gpu=False, engine__running=2), "toolkit")
    assert not found.commands and "2 running containers" in found.by_hand


def test_folders_are_made_taken_or_left():
    absent = {"path": "/data", "there": False, "in_way": False}
    assert step(facts(folders__data=absent), "data").commands[0].argv[-1] == "/data"
    roots = {**FOLDER, "path": "/data", "owner": "root", "writable": False}
    assert step(facts(folders__data=roots), "data").commands[0].argv[:2] == (
        "chown",
        "ubuntu:ubuntu",
    )


def test_a_box_that_is_a_container_gets_a_python_and_folders_only():
    found = bare("debian", "13", container=True, systemd=False, venv=False)
    assert [each.name for each in plan(found, "gpu")] == ["kind", "Python", "data", "input"]
    assert installs(found, "Python") == ["python3-venv"]


def test_first_boot_and_locks_are_waited_for():
    found = facts(cloud_init="status: running", locks=["unattended-upgr (812)"])
    names = [each.name for each in plan(found, "gpu")]
    assert names[:2] == ["first boot", "apt"]
    assert "unattended-upgr (812)" in step(found, "apt").why


def test_only_apt_goes_through_the_proxy():
    apt = Command(("env", "A=b", "apt-get", "-q", "update"))
    assert "Acquire::http::Proxy=http://x" in through(apt, "http://x").argv
    assert through(apt, "http://x").argv[-1] == "update"
    assert through(apt, "") == apt
    other = Command(("usermod", "-aG", "docker", "u"))
    assert through(other, "http://x") == other


HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w"); fcntl.lockf(lock, fcntl.LOCK_EX); print("held", flush=True); input()
"""


def test_who_holds_apts_lock_is_seen_without_being_root(tmp_path, monkeypatch):
    lock = tmp_path / "lock-frontend"
    lock.touch()
    monkeypatch.setattr(survey, "LOCKS", (str(lock), str(tmp_path / "absent")))
    assert survey.lock_holders() == []
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        (found,) = survey.lock_holders()
        assert found.endswith(f"({holder.pid})")
        holder.stdin.close()
    assert survey.lock_holders() == []
