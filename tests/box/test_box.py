"""The boxes that other tests deploy to are what they claim to be."""

import subprocess

import pytest

from tests.box.box import box_image, docker

pytestmark = [pytest.mark.engine, pytest.mark.box, pytest.mark.slow]


def test_an_engine_box_is_a_machine(boxes):
    box = boxes.start("engine", user="dev")
    assert box.run("systemctl", "is-system-running").stdout.strip() == "running"
    assert box.ssh("id -un && docker info --format ok && sudo id -un").stdout.split() == [
        "dev",
        "ok",
        "root",
    ]
    assert box.ssh("docker compose version --short").stdout.startswith("2.")
    disks = box.run("stat", "--format", "%d", "/", "/data", "/input").stdout.split()
    assert box.ssh("touch /data/mine").returncode == 0
    assert len(disks) == 3 and disks[0] != disks[1]


def test_a_box_that_switches_itself_off_keeps_its_disks_and_its_address(boxes):
    box = boxes.start("engine")
    box.run("sh", "-c", "echo kept >/data/file; echo kept >/root/file; echo gone >/run/file")
    box.ssh("nohup systemctl poweroff >/dev/null 2>&1 &")
    assert box.wait_off() == 130
    assert box.ssh("true").returncode == 255
    box.power_on()
    assert box.ssh("cat /data/file /root/file").stdout.split() == ["kept", "kept"]
    assert box.run("test", "-e", "/run/file", check=False).returncode == 1


def test_a_process_box_has_sshd_alone(boxes):
    box = boxes.start("process")
    assert box.ssh("cat /proc/1/comm").stdout.strip() == "sshd"
    assert box.ssh("command -v docker || command -v systemctl").returncode == 1


def test_a_bare_box_has_init_and_no_engine(boxes):
    box = boxes.start("bare", disks=False)
    assert box.run("systemctl", "is-system-running").stdout.strip() == "running"
    assert box.ssh("command -v docker || command -v rsync").returncode == 1
    assert box.ssh("ls /data /input").returncode == 2


def test_two_boxes_have_two_host_keys_and_an_unknown_one_is_refused(boxes):
    first, second = boxes.start("process"), boxes.start("process", known=False)
    assert first.host_keys.split()[2] != second.host_keys.split()[2]
    assert first.ssh("true").returncode == 0
    refused = second.ssh("true")
    assert refused.returncode == 255 and "Host key verification failed" in refused.stderr


def test_commands_past_ssh_take_input(boxes):
    box = boxes.start("process")
    assert box.run("cat", input="bytes\n").stdout == "bytes\n"
    with pytest.raises(RuntimeError, match="false"):
        box.run("false")
    assert subprocess.run(["ssh", "-F", box.ssh_config, box.name, "true"]).returncode == 0


def test_an_image_comes_to_a_box_whole_and_is_its_own(boxes):
    """By links where that can be, by a tar otherwise: the same id, every byte, and a box that
    removes it takes nothing from this machine's engine."""
    box, image = boxes.start("engine"), box_image("process")
    box.load(image)
    told = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    assert box.run(*told).stdout == docker(*told[1:]).stdout
    own = "! -path /etc/hostname ! -path /etc/hosts ! -path /etc/resolv.conf ! -path /.dockerenv"
    sums = f"find / -xdev -type f {own} -exec sha256sum {{}} + | sort"
    look = ["docker", "run", "--rm", image, "sh", "-c", sums]
    here = docker(*look[1:]).stdout
    assert box.run(*look).stdout == here and here.count("\n") > 3000
    box.run("docker", "image", "rm", image)
    assert docker("run", "--rm", image, "cat", "/etc/debian_version").stdout
