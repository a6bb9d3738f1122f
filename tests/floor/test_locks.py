"""Locks as folders: one holder at a time, the dead ones taken over by exactly one."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.onbox import locks
from deploy.onbox.locks import holder, locked, try_lock
from deploy.onbox.refusal import Refusal


@pytest.fixture
def lock(tmp_path):
    return str(tmp_path / "lock")


def lay(lock, **changes):
    """A lock as someone else left it."""
    os.mkdir(lock)
    owner = {**holder("upload", "anna@laptop"), **changes}
    with open(os.path.join(lock, "holder.json"), "w") as file:
        json.dump(owner, file)
    return owner


def make_old(lock, seconds):
    then = time.time() - seconds
    for path in (os.path.join(lock, "holder.json"), lock):
        if os.path.exists(path):
            os.utime(path, (then, then))


def test_a_living_holder_is_named_and_waited_for(lock):
    with locked(lock, "upload", "anna@laptop"):
        with pytest.raises(Refusal, match="upload by anna@laptop, pid") as caught, locked(lock):
            pass
        assert caught.value.kind == "Busy"
    with locked(lock):
        pass
    assert not os.path.exists(lock)


DEAD = [
    {"pid": 999999999},  # no such process on this boot
    {"started": "1"},  # its pid is another process by now
]


@pytest.mark.parametrize("changes", DEAD)
def test_a_dead_process_of_this_boot_loses_it_at_once(lock, changes):
    lay(lock, **changes)
    assert try_lock(lock) is None


@pytest.mark.parametrize("changes", [{"host": "another-box"}, {"boot": "before the reboot"}])
def test_elsewhere_only_the_heartbeat_counts(lock, changes):
    owner = lay(lock, **changes)
    assert try_lock(lock) == owner
    make_old(lock, locks.DEAD_AFTER + 10)
    assert try_lock(lock) is None


def test_a_damaged_lock_is_taken_after_the_same_time(lock):
    os.mkdir(lock)
    with open(os.path.join(lock, "holder.json"), "w") as file:
        file.write("{")
    assert try_lock(lock) == {}
    make_old(lock, locks.DEAD_AFTER + 10)
    assert try_lock(lock) is None


def test_a_late_taker_of_a_dead_lock_does_not_take_the_next_ones(lock):
    dead = lay(lock, pid=999999999)
    assert try_lock(lock) is None  # someone else was faster
    locks.bury(lock, dead)
    assert locks.read_holder(lock)["pid"] == os.getpid()


def test_who_lost_it_while_he_slept_does_not_take_it_from_the_next(lock):
    with locked(lock):
        make_old(lock, 0)
        locks.remove_lock(lock)
        lay(lock, host="another-box")
    assert os.path.isdir(lock)


TAKER = """
import os, sys, time
from deploy.onbox.locks import locked
lock, counter, dies = sys.argv[1], sys.argv[2], sys.argv[3] == "dies"
with locked(lock, wait=100):
    with open(counter) as file:
        value = int(file.read())
    time.sleep(0.005)
    with open(counter, "w") as file:
        file.write(str(value + 1))
    if dies:
        os._exit(0)
"""


@pytest.mark.slow
def test_many_takers_and_dead_locks_and_yet_one_at_a_time(tmp_path, lock):
    counter = tmp_path / "counter"
    counter.write_text("0")

    def one_after_another(thread):
        for number in range(10):
            how = "dies" if (thread + number) % 2 else "lives"
            command = [sys.executable, "-c", TAKER, lock, str(counter), how]
            subprocess.run(command, check=True, timeout=120)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one_after_another, range(6)))
    assert counter.read_text() == "60"
