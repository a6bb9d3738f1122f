"""fab bootstrap on real bare machines in containers: made ready once, and then left alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.box.box import docker

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
FAB = [sys.executable, "-m", "fabric"]
STATE = """
dpkg-query -W; id dev; ls -ld /data /input 2>&1
find /etc -type f -newer /root/before -not -name ld.so.cache
"""


def fab(*words):
    return subprocess.run([*FAB, *words], capture_output=True, text=True, timeout=900)


def answer(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["results"][0]


def state(box):
    return box.run("sh", "-c", STATE).stdout


def packages(box):
    """{package: version} of all that is installed."""
    lines = box.run("dpkg-query", "-W", "-f", "${Package} ${Version}\\n").stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines)


@pytest.fixture(params=["Debian 13", "Debian 12"])
def system(request, engine, monkeypatch):
    """The distribution that `boxes` then start with."""
    if request.param == "Debian 12":
        if shutil.which("mmdebstrap") is None:
            pytest.skip("mmdebstrap makes the Debian 12 image (apt-get install mmdebstrap)")
        monkeypatch.setattr("tests.box.box.box_image", bookworm_image)


def bookworm_image(kind):
    """The image of a kind on Debian 12; its base takes two minutes, once."""
    base, tag = "gpubox-box-base:bookworm", f"gpubox-box-bookworm:{kind}"
    if docker("image", "inspect", base, check=False).returncode != 0:
        env = {**os.environ, "GPUBOX_SUITE": "bookworm"}
        subprocess.run([ROOT / "images/base", base], env=env, check=True, capture_output=True)
    words = ["--quiet", "--target", kind, "--tag", tag, "--build-arg", f"BASE={base}"]
    docker("build", *words, "--secret", "id=ca,src=/dev/null", str(ROOT / "tests/box"))
    return tag


def test_a_bare_box_is_made_ready_and_a_second_time_nothing_changes(system, boxes):
    box = boxes.start("bare", user="dev", disks=False, toml='provider = "vm"')
    box.run("touch", "/root/before")
    before, versions = state(box), packages(box)
    dry = fab("bootstrap", "--host", box.name, "--dry-run")
    assert dry.returncode == 0 and "docker-compose" in dry.stdout, dry.stderr
    assert state(box) == before

    first = fab("bootstrap", "--host", box.name, "--json")
    assert first.returncode == 0, first.stderr
    assert answer(first)["changed"] == ["engine", "start", "group", "data", "input", "keeper"]
    assert box.ssh("docker run --help >/dev/null && docker info --format ok").stdout == "ok\n"
    assert box.ssh("docker compose version --short").stdout.startswith("2.")
    assert box.ssh("touch /data/mine /input/mine").returncode == 0

    now = packages(box)
    assert {name: now[name] for name in versions} == versions  # nothing was upgraded
    ready = state(box)
    second = fab("bootstrap", "--host", box.name, "--json")
    assert second.returncode == 0, second.stderr
    assert answer(second) == {"box": box.name, "changed": [], "by_hand": {}}
    assert state(box) == ready
    checks = {
        each["name"]: each for each in answer(fab("doctor", "--host", box.name, "--json"))["checks"]
    }
    wanted = ("engine", "compose", "docker group", "data", "input", "root", "auto-stop")
    assert {checks[name]["verdict"] for name in wanted} <= {"ok", "note"}


def test_a_box_without_a_network_gets_its_packages_through_this_machine(boxes):
    box = boxes.start("bare", disks=False, toml='provider = "vm"')
    box.run("ip", "route", "del", "default")
    assert box.run("timeout", "5", "apt-get", "-qq", "update", check=False).returncode != 0
    done = fab("bootstrap", "--host", box.name, "--json")
    assert done.returncode == 0, done.stderr
    assert "its packages go through this machine" in done.stderr
    assert box.ssh("docker info --format ok").stdout == "ok\n"
    assert not box.run("sh", "-c", "grep -r 127.0.0.1 /etc/apt", check=False).stdout  # none left


def test_without_root_it_says_what_is_to_be_done_and_does_nothing(boxes):
    box = boxes.start("bare", user="dev", disks=False)
    box.run("rm", "/etc/sudoers.d/dev")
    box.run("touch", "/root/before")
    before = state(box)
    done = fab("bootstrap", "--host", box.name, "--json")
    assert done.returncode == 20
    left = answer(done)["by_hand"]
    assert (
        left["engine"].startswith(f"as root on {box.name}: ") and "docker-compose" in left["engine"]
    )
    assert state(box) == before


def test_a_box_that_is_a_container_gets_no_engine(boxes):
    box = boxes.start("process", disks=False, toml='provider = "onprem"')
    done = fab("bootstrap", "--host", box.name, "--json")
    assert done.returncode == 0, done.stderr
    assert answer(done)["changed"] == ["data", "input", "keeper"]
    assert box.ssh("command -v docker").returncode == 1
