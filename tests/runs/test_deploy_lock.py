"""One deploy at a time on a box: taken by requests, handed on, taken over from the dead."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from deploy.errors import Busy
from deploy.verbs.unlock import deploying, release_with_next

pytestmark = pytest.mark.slow


def lock_of(box):
    path = os.path.join(box.places.home, "deploy.lock", "holder.json")
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def again(box):
    from tests.runs.conftest import TestBox

    return TestBox(box.folder, box.places.home)


def test_it_is_held_from_the_first_request_to_the_end(box):
    with deploying(box.agent):
        assert lock_of(box) is None  # nothing was asked of the box yet
        box.agent.call("facts")
        held = lock_of(box)
        assert held["why"] == "deploy" and held["pid"] == os.getpid()
        box.agent.call("status")
        assert lock_of(box)["token"] == held["token"]
    assert lock_of(box) is None
    assert "lock" not in box.agent.also


def test_it_gives_signs_of_life_while_the_laptop_builds(box, monkeypatch):
    monkeypatch.setattr("deploy.verbs.unlock.RENEW", 0.5)
    with deploying(box.agent):
        box.agent.call("facts")
        path = os.path.join(box.places.home, "deploy.lock", "holder.json")
        os.utime(path, (time.time() - 110, time.time() - 110))
        box.wait(lambda: time.time() - os.stat(path).st_mtime < 60)
        assert lock_of(box)["pid"] == os.getpid()
    assert lock_of(box) is None


def test_the_last_request_gives_it_back(box):
    with deploying(box.agent):
        box.agent.call("facts")
        release_with_next(box.agent)
        box.agent.call("status")
        assert lock_of(box) is None


def test_the_second_waits_for_the_first_and_says_for_whom(box):
    second, order, told = again(box), [], []

    def deploy_second():
        with deploying(second.agent, "the second"):
            second.agent.call("facts", told.append)
            order.append("second")

    with deploying(box.agent, "the first"):
        box.agent.call("facts")
        thread = threading.Thread(target=deploy_second)
        thread.start()
        box.wait(lambda: any("waits_for" in event for event in told))
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert "the first" in next(e["waits_for"] for e in told if "waits_for" in e)


def test_two_at_the_same_instant_never_hold_it_together(box):
    inside, most, lock = [0], [0], threading.Lock()

    def one(agent):
        with deploying(agent):
            agent.call("facts")
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.3)
            with lock:
                inside[0] -= 1
            agent.call("status")

    threads = [threading.Thread(target=one, args=(again(box).agent,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert lock_of(box) is None


DEPLOYER = """
import sys, time
from deploy.effects.agent import Agent
from deploy.effects.link import LocalLink
from deploy.verbs.unlock import deploying
box = Agent(LocalLink(), {folders!r})
with deploying(box):
    box.call("facts")
    print("holds it", flush=True)
    time.sleep(600)
"""


def killed_deployer(box):
    script = DEPLOYER.format(folders=box.folders)
    deployer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert deployer.stdout.readline() == b"holds it\n"
    return deployer


def test_kill_9_of_the_deployer_hinders_nobody(box):
    deployer = killed_deployer(box)
    with pytest.raises(Busy, match="a deploy goes on: deploy by"):
        with deploying(box.agent, wait=0):
            box.agent.call("facts")
    deployer.kill()
    deployer.wait()
    with deploying(box.agent, wait=0):
        box.agent.call("facts")
        assert lock_of(box)["pid"] == os.getpid()


def test_another_laptops_dead_deploy_is_taken_over_by_its_age(box, tmp_path, monkeypatch):
    deployer = killed_deployer(box)
    deployer.kill()
    deployer.wait()
    monkeypatch.setenv("GPUBOX_HOME", str(tmp_path / "another laptop"))
    box.agent.also["lock"] = {"me": {"token": "other"}, "dead": [], "wait": 0}
    box.agent.folders = box.folders
    path = os.path.join(box.places.home, "deploy.lock", "holder.json")
    monkeypatch.setenv("GPUBOX_HOME", str(box.places.home))
    with pytest.raises(Busy):
        box.agent.call("facts")
    os.utime(path, (time.time() - 130, time.time() - 130))
    box.agent.call("facts")
    assert lock_of(box)["token"] == "other"


def test_unlock_frees_a_dead_lock_and_a_living_one_only_by_force(box):
    with deploying(box.agent):
        box.agent.call("facts")
        other = again(box)
        assert other.agent.call("unlock")["freed"] is False
        assert lock_of(box) is not None
        found = other.agent.call("unlock", force=True)
        assert found["freed"] and found["alive"]
        assert lock_of(box) is None
    assert other.agent.call("unlock")["held"] is False
