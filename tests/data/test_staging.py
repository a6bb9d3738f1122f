"""How staging shares out its work, goes on after an end, makes room, and is a no-op where it can be."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy.console import Show
from deploy.errors import DataError, KitError
from deploy.onbox.crew import share_out
from deploy.onbox.entry import ensure_staged
from deploy.onbox.manifest import FILE, FOLDER, Entry, Header, header_line, line_of
from deploy.onbox.places import Places
from deploy.onbox.reading import CHUNK, Range, read_ahead
from deploy.onbox.refusal import Refusal
from deploy.onbox.room import candidates
from deploy.onbox.slices import not_packed, opened, packed, read_slices, room_taken
from deploy.onbox.stage import stage_set
from deploy.onbox.staged import find_staged
from deploy.onbox.unpack import NEAR, runs_of
from deploy.verbs.desk import Desk
from deploy.verbs.stage import stage
from tests.data.conftest import small_files, tree_of
from tests.data.test_archives import tar_bytes, zip_bytes
from tests.data.test_faults import STAGE, box_side, flip, in_a_process, wait_for

PACK = "a" * 64


def entry(path, offset, size=100, pack=PACK):
    return Entry(path, FILE, 0o600, size, 1, "0" * 64, pack, offset)


# ---- slices of a manifest ------------------------------------------------------------------------


class FakeShelf:
    """What `opened` asks of a shelf: the name, and where a version's manifest is."""

    name = "set"

    def __init__(self, path):
        self.path = path

    def version(self, version):
        return str(self.path)


def manifest_of(tmp_path, entries, files=None):
    count = sum(each.type == FILE for each in entries) if files is None else files
    path = tmp_path / "manifest"
    lines = [header_line(Header(count, 0, 0, 0, 1.0)), *map(line_of, entries)]
    path.write_text("".join(lines))
    return FakeShelf(path)


def test_slices_hold_every_line_once_and_in_order(tmp_path):
    odd = ['quo"te", "pack": "x', "back\\slash", "new\nline", 'a", "size": 7', "bad\udcff"]
    entries = [entry(f"d/{i:05}", i * 512) for i in range(3000)]
    entries += [entry("z/" + name, 0, pack="") for name in odd] + [Entry("z", FOLDER, 0o755)]
    shelf = manifest_of(tmp_path, entries)
    with opened(shelf, "v") as manifest:
        parts = list(read_slices(manifest))
        assert room_taken(manifest, 4096) == 4096 * 3005
    text = shelf.path.read_bytes()
    assert len(parts) > 5
    assert b"".join(lines for _, lines in parts) == text[text.index(b"\n") + 1 :]
    assert all(text[p.offset : p.offset + p.length] == lines for p, lines in parts)
    assert [each for _, lines in parts for each in packed(lines)] == entries[:3000]
    assert [each for _, lines in parts for each in not_packed(lines)] == entries[3000:]


@pytest.mark.parametrize("harm", ["a line lacks", "cut within a line", "no manifest"])
def test_a_manifest_that_is_not_whole_is_refused(tmp_path, harm):
    entries = [entry(f"d/{i:05}", i * 512) for i in range(500)]
    shelf = manifest_of(tmp_path, entries, files=501 if harm == "a line lacks" else None)
    if harm == "cut within a line":
        os.truncate(shelf.path, shelf.path.stat().st_size - 30)
    if harm == "no manifest":
        shelf.path.write_text("hello\n")
    with pytest.raises(Refusal, match="manifest") as caught, opened(shelf, "v") as manifest:
        for _, lines in read_slices(manifest):
            packed(lines)
    assert caught.value.kind == "DataError"


@pytest.mark.parametrize(
    "entries, runs",
    [
        ([], []),
        ([entry("a", 512), entry("b", 1536)], [(512, 1124, "ab")]),
        ([entry("b", 1536), entry("a", 512)], [(512, 1124, "ab")]),  # not in the pack's order
        ([entry("a", 0), entry("b", 101 + NEAR)], [(0, 100, "a"), (101 + NEAR, 100, "b")]),
        ([entry("a", 0), entry("b", 512, CHUNK)], [(0, 100, "a"), (512, CHUNK, "b")]),
        ([entry("a", 0, 3 * CHUNK)], [(0, 3 * CHUNK, "a")]),
        ([entry("a", 7), entry("b", 7)], [(7, 100, "ab")]),  # the same content twice
        ([entry("a", 0, 0)], [(0, 0, "a")]),
        ([entry("a", 0), entry("b", 0, pack="b" * 64)], [(0, 100, "a"), (0, 100, "b")]),
    ],
)
def test_what_lies_close_together_is_read_at_once(entries, runs):
    found = [(r.offset, r.length, "".join(e.path for e in r.entries)) for r in runs_of(entries)]
    assert found == runs


def test_ranges_come_in_order_though_many_files_take_turns(tmp_path):
    contents = [os.urandom(5000) for _ in range(150)]  # more than are kept open
    for i, content in enumerate(contents):
        (tmp_path / str(i)).write_bytes(content)
    wanted = [(i, at) for at in range(0, 5000, 1000) for i in range(150)]
    ranges = [Range(str(tmp_path / str(i)), at, 1000) for i, at in wanted]
    before = len(os.listdir("/proc/self/fd"))
    assert list(read_ahead(ranges)) == [contents[i][at : at + 1000] for i, at in wanted]
    assert list(read_ahead([Range(str(tmp_path / "none"), 0, 9)])) == [b""]
    assert len(os.listdir("/proc/self/fd")) <= before


# ---- several processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_every_piece_is_done_once_whoever_takes_it(count):
    def work(hand):
        for first, second in iter(hand.take, None):
            yield [first, second, os.getpid()]

    done = list(share_out(work, ((i, i * i) for i in range(5000)), count))
    assert sorted(each[:2] for each in done) == [[i, i * i] for i in range(5000)]
    assert (os.getpid() in {each[2] for each in done}) == (count == 1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "no",
    [Refusal("VerifyError", "é bad", "mend"), OSError(28, "No space", "/x")],
    ids=["ours", "os"],
)
def test_what_a_process_raises_is_raised_here(count, no):
    def work(hand):
        for first, _ in iter(hand.take, None):
            if first == 70:
                raise no
            yield first

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(type(no)) as caught:
        list(share_out(work, ((i, 0) for i in range(100)), count))
    for name in ("kind", "message", "hint", "errno", "filename"):
        assert getattr(caught.value, name, None) == getattr(no, name, None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_killed_is_no_success():
    def work(hand):
        for first, _ in iter(hand.take, None):
            if first == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            yield first

    with pytest.raises(Refusal, match="signal 9"):
        list(share_out(work, ((i, 0) for i in range(10)), 2))


def test_where_no_process_is_to_be_had_we_do_it_ourselves(monkeypatch):
    def no_more():
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_more)

    def work(hand):
        yield from iter(hand.take, None)

    assert list(share_out(work, [(1, 2), (3, 4)], 4)) == [(1, 2), (3, 4)]


ORPHANS = """
import os, sys, time
from deploy.onbox.crew import share_out
def work(hand):
    for piece in iter(hand.take, None):
        os.write(1, b"%d\\n" % os.getpid())
        while True:
            hand.check()
            time.sleep(0.01)
    yield
list(share_out(work, [(1, 1), (2, 2)], 2))
"""


def test_children_end_with_their_parent():
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE)
    children = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(is_running(each) for each in children))


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


# ---- a whole staging -----------------------------------------------------------------------------


def places_of(box):
    runs = str(box.data / "runs")
    return Places(str(box.data), str(box.input), runs, str(box.folder / "home"), [])


def test_staging_goes_on_with_the_slices_that_are_whole(box, tmp_path):
    small_files(tmp_path / "set", 3000)
    version = box.upload(tmp_path / "set")["version"]
    staged = find_staged(places_of(box), "set", version)
    pack = max((box.data / "set" / ".gpubox" / "packs").iterdir(), key=lambda p: p.stat().st_size)
    content = pack.read_bytes()
    flip(pack, -3000)  # near its end: what comes before is whole
    with pytest.raises(KitError, match="checksum"):
        box.stage()
    done = Path(staged.path + ".journal").read_text().splitlines()[1:]
    assert done
    there = {p: p.stat().st_ino for p in Path(staged.part).rglob("*.png")}
    pack.write_bytes(content)
    assert tree_of(box.stage()["path"]) == tree_of(tmp_path / "set")
    kept = [p for p, inode in there.items() if same_inode(staged, p, inode)]
    assert kept and not Path(staged.path + ".journal").exists()


def same_inode(staged, path, inode):
    return (Path(staged.path) / path.relative_to(staged.part)).stat().st_ino == inode


def test_one_waits_for_the_other_and_says_for_whom(box, tmp_path):
    small_files(tmp_path / "set", 400)
    box.upload(tmp_path / "set")
    told, began = [], threading.Event()

    def hear(**fields):
        told.append(fields.get("note", ""))
        began.set()

    lock = box.input / ".gpubox" / "set.lock"
    holder = in_a_process(HOLD, lock)
    wait_for(lock.exists)
    thread = threading.Thread(target=stage_set, args=(places_of(box), "set", "current", hear))
    thread.start()
    assert began.wait(20)
    assert f"waiting for stage set, pid {holder.pid} on" in told[0]
    assert not (box.input / "set").exists()
    holder.kill()  # dead, and its lock still there: it is taken over
    holder.wait()
    thread.join(20)
    assert tree_of(box.input / "set") == tree_of(tmp_path / "set")
    wait_for(Path(f"{(box.input / 'set').resolve()}.synced").exists)


HOLD = """
import os, sys, time
from deploy.onbox.locks import locked
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
with locked(sys.argv[1], "stage set"):
    time.sleep(600)
"""


def test_it_is_staged_in_the_background_and_who_needs_it_waits_for_the_rest(box, tmp_path):
    small_files(tmp_path / "set", 3000)
    version = box.upload(tmp_path / "set")["version"]
    began = box.agent.call("stage_ahead", name="set", version=version)
    assert began["began"] is True
    staged = box.stage()
    assert staged["version"] == version
    assert tree_of(staged["path"]) == tree_of(tmp_path / "set")


def test_it_is_whole_though_nobody_waits(box, tmp_path):
    small_files(tmp_path / "set", 50)
    version = box.upload(tmp_path / "set")["version"]
    box.agent.call("stage_ahead", name="set", version=version)
    deadline = time.monotonic() + 30
    while not (box.input / "set").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert tree_of(box.input / "set") == tree_of(tmp_path / "set")
    assert box.stage()["already"]


def test_what_is_staged_already_is_only_looked_at(box, tmp_path, monkeypatch):
    small_files(tmp_path / "set", 400)
    box.upload(tmp_path / "set")
    first = stage_set(places_of(box), "set", "current", lambda **told: None)
    packs = box.data / "set" / ".gpubox" / "packs"
    packs.rename(packs.with_name("elsewhere"))  # nothing can be read of it now
    again = stage_set(places_of(box), "set", "current", lambda **told: None)
    assert again["already"] and again["path"] == first["path"]
    wait_for(Path(first["path"] + ".synced").exists)


def test_the_entry_point_takes_what_the_deployer_staged(box, tmp_path, capfd):
    small_files(tmp_path / "set", 400)
    box.upload(tmp_path / "set")
    path = Path(box.stage()["path"])
    inodes = {p: p.stat().st_ino for p in path.rglob("*")}
    assert ensure_staged("set", str(box.data), str(box.input)) == str(path)
    assert "there already" in capfd.readouterr().err
    assert {p: p.stat().st_ino for p in path.rglob("*")} == inodes


def test_the_least_used_leaves_first_and_the_one_in_use_never(box):
    own = box.input / ".gpubox"
    for name in ("set@new", "set@old", "set@run", "set@linked", "other@old"):
        (own / name).mkdir(parents=True)
        used = own / (name + ".used")
        used.touch()
        age = {"set@new": 10, "set@old": 900, "set@run": 5000, "set@linked": 7000}.get(name, 400)
        os.utime(used, (time.time() - age, time.time() - age))
    (box.input / "set").symlink_to(".gpubox/set@linked")
    run = box.data / "runs" / "one"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"data": {"name": "set", "version": "run"}}))
    (run / "state.json").write_text(json.dumps({"state": "running"}))
    found = candidates(places_of(box), find_staged(places_of(box), "set", "coming"))
    assert [os.path.basename(each) for each in found] == [
        "set@old", "other@old", "set@new", "set@linked",
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_a_refused_archive_leaves_no_trace_on_the_fast_disk(box, tmp_path, ending):
    """It was exchanged on /data: a hostile one is refused before the upload."""
    good, bad = {
        "tar": (tar_bytes(("a", "f", b"1")), tar_bytes(("a", "f", b"1"), ("../b", "f", b"2"))),
        "zip": (zip_bytes([(b"a", b"1")]), zip_bytes([(b"a", b"1"), (b"../b", b"2")])),
    }[ending]
    (tmp_path / f"set.{ending}").write_bytes(good)
    box.upload(tmp_path / f"set.{ending}")
    (box.data / "set" / f"set.{ending}").write_bytes(bad)
    with pytest.raises(KitError, match="outside|checksum"):
        box.stage()
    assert tree_of(box.input).keys() == {b".gpubox"}


@pytest.mark.slow
def test_a_writer_that_the_kernel_kills_is_an_error_and_the_next_goes_on(box, tmp_path):
    small_files(tmp_path / "set", 6000)
    box.upload(tmp_path / "set")
    killed = False
    for _ in range(20):
        process = in_a_process(STAGE, box.folder)
        wait_for(lambda: box_side(process.pid) or process.poll() is not None)  # noqa: B023
        children = []
        while process.poll() is None and not children:
            children = children_of(box_side(process.pid))
        for child in children[:1]:
            os.kill(child, signal.SIGKILL)
        if process.wait() != 0:
            killed = True
            break
        for each in (box.input / ".gpubox").glob("set@*"):
            each.is_dir() and subprocess.run(["rm", "-rf", str(each)], check=True)
    assert killed and not (box.input / "set").exists()
    assert tree_of(box.stage()["path"]) == tree_of(tmp_path / "set")


def children_of(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(each) for each in found.split()]


# ---- the workload's own look at it ---------------------------------------------------------------


def idx(images):
    """MNIST's four files, with this many pictures each."""
    pictures = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (images, 28, 28))
    labels = bytes([0, 0, 8, 1]) + images.to_bytes(4, "big")
    return pictures + bytes(784 * images), labels + bytes(i % 10 for i in range(images))


def write_mnist(folder, images=300):
    folder.mkdir()
    pictures, labels = idx(images)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(pictures)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


PYTHON = Path(__file__).resolve().parents[2] / ".venv-train" / "bin" / "python"
has_numpy = pytest.mark.skipif(not PYTHON.exists(), reason="no Python with numpy: make .venv-train")
TOML = """
[run]
data = "{data}"
code = "{code}"
image = "gpubox/none:such"
[boxes.local]
host = "local"
python = "{python}"
data = "{folder}/data"
input = "{folder}/input"
"""


@pytest.fixture
def fab_stage(box, tmp_path, monkeypatch):
    """`fab stage set` with this much of a config."""

    def run(data="set", code="", python=""):
        config = tmp_path / "gpubox.toml"
        words = {"data": data, "code": code, "python": python, "folder": box.folder}
        config.write_text(TOML.format(**words))
        monkeypatch.setenv("GPUBOX_CONFIG", str(config))
        return stage(Desk(Show(machine=True), ["local"]), "set", "current", False)[0]

    return run


@has_numpy
def test_after_staging_the_workload_looks_at_the_set_once(box, tmp_path, fab_stage, monkeypatch):
    write_mnist(tmp_path / "mnist")
    box.upload(tmp_path / "mnist")
    first = fab_stage(python=PYTHON)
    assert "300" in first["check"]["said"]
    monkeypatch.setenv("PATH", str(only_python(tmp_path)))  # nothing could look at it again
    again = fab_stage()
    assert again["already"] and again["check"] == first["check"]


@has_numpy
def test_a_set_that_can_not_be_trained_on_is_an_error_that_says_why(box, tmp_path, fab_stage):
    write_mnist(tmp_path / "mnist")
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-20])
    box.upload(tmp_path / "mnist")
    with pytest.raises(DataError, match="train-labels"):
        fab_stage(python=PYTHON)
    assert (box.input / "set" / labels.name).exists()


def test_where_nothing_can_look_it_is_said(box, tmp_path, fab_stage, monkeypatch):
    write_mnist(tmp_path / "mnist")
    box.upload(tmp_path / "mnist")
    monkeypatch.setenv("PATH", str(only_python(tmp_path)))
    no_means = "the box has no image of ours yet, and no Python with numpy"
    assert fab_stage()["check"] == {"skipped": no_means}
    assert fab_stage(data="other")["check"] == {"skipped": "run.data is other"}
    (tmp_path / "mine").mkdir()
    assert fab_stage(code="mine")["check"] == {"skipped": "the program is your own"}


def only_python(tmp_path):
    """A folder for PATH with this Python and the few programs that the agent's start takes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cat", "mkdir", "mv", "rm", "sync"):
        (folder / name).symlink_to(shutil.which(name))
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no packages
    (folder / "python3").chmod(0o755)
    return folder
