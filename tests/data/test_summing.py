"""Checksums of many files by processes beside this one: the same as here, in the same order."""

import hashlib

import pytest

from deploy.effects.summing import BATCH, Packer, summed
from deploy.errors import DataError, TransferError
from deploy.plan.transfer import FILE, FOLDER, Found


@pytest.fixture
def asked(tmp_path):
    """More than three batches: folders, files with and without a checksum that is wanted."""
    things = []
    for number in range(3 * BATCH + 7):
        name = f"{number:05}"
        if number % 11 == 0:
            things.append((Found(name, FOLDER, 0o755, 0, 0), False))
            continue
        (tmp_path / name).write_bytes(name.encode() * (number % 7))
        status = (tmp_path / name).stat()
        found = Found(name, FILE, 0o644, status.st_size, status.st_mtime_ns)
        things.append((found, number % 3 != 0))
    return things


@pytest.mark.parametrize("processes", [1, 3])
def test_processes_give_the_checksums_that_are_wanted_and_keep_the_order(
    tmp_path, asked, processes
):
    wanted = [
        found._replace(sha256=hashlib.sha256((tmp_path / found.path).read_bytes()).hexdigest())
        if want
        else found
        for found, want in asked
    ]
    assert list(summed(str(tmp_path), asked, processes)) == wanted
    assert list(summed(str(tmp_path), asked[:99], processes)) == wanted[:99]  # few: made here


def test_few_checksums_start_no_process(tmp_path, asked, monkeypatch):
    monkeypatch.setattr("deploy.effects.summing.Packer", None)
    assert len(list(summed(str(tmp_path), asked[:99]))) == 99


def test_a_file_that_cannot_be_read_is_named(tmp_path, asked):
    (tmp_path / "00700").unlink()
    with pytest.raises(DataError, match="00700: No such file"):
        list(summed(str(tmp_path), asked, 2))


def test_processes_end_with_the_work_or_its_end(tmp_path, asked, monkeypatch):
    started = []

    class Noted(Packer):
        def __init__(self):
            super().__init__()
            started.append(self._process)

    monkeypatch.setattr("deploy.effects.summing.Packer", Noted)
    half = summed(str(tmp_path), asked, 2)
    next(half)
    half.close()
    assert len(started) == 2 and all(each.poll() is not None for each in started)


def test_a_process_that_is_killed_is_an_error_and_no_hang(tmp_path, asked, monkeypatch):
    class Killed(Packer):
        def ask_sums(self, root, files):
            super().ask_sums(root, files)
            self._process.kill()
            self._process.wait()

    monkeypatch.setattr("deploy.effects.summing.Packer", Killed)
    with pytest.raises(TransferError, match="the process that reads the files was ended"):
        list(summed(str(tmp_path), asked, 2))
