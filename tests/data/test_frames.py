"""Frames on an upload's line: what the laptop writes the box reads, squeezed or not, and no more."""

import io
import random
import struct
import subprocess
import sys
import time
import zlib

import pytest

from deploy.effects.writer import Squeezer, Writer
from deploy.onbox.frames import LARGEST, Frames
from deploy.onbox.refusal import Refusal
from deploy.onbox.wire import CHANGES, LIFE, ZLIB

NOISE = random.Random(1).randbytes(1 << 20)
TEXT = b"the same line again and again\n" * 30_000


class Line(io.BytesIO):
    """Keeps what was written."""

    kept = b""

    def close(self):
        self.kept = self.getvalue()


def read_all(stream, changes=None):
    frames = Frames(io.BytesIO(stream), "", changes)
    return list(iter(frames.next, None))


def written(*frames):
    line = Line()
    writer = Writer(line)
    for each in frames:
        writer.put(*each)
    writer.end()
    assert writer.sent == len(line.kept) - 4 * len(frames)
    return line.kept


def test_what_is_written_is_read(tmp_path):
    told = []
    stream = written((NOISE,), (TEXT, True), (b"",), (b"+change\n" * 99, True, CHANGES), (b"end",))
    assert read_all(stream, told.append) == [NOISE, TEXT, b"", b"end"]
    assert told == [b"+change\n" * 99]
    assert len(stream) < len(NOISE) + 10_000  # the text was squeezed, the noise was not


def test_contents_are_squeezed_on_a_slow_line_only():
    slow, fast = Squeezer(), Squeezer()
    slow.line_took(1 << 20, 100.0)
    fast.line_took(1 << 20, 0.001)
    squeezed = [slow.squeezed(TEXT) for _ in range(4)]
    assert all(zlib.decompress(each) == TEXT for each in squeezed)
    assert [fast.squeezed(TEXT) for _ in range(9)] == [None] * 9


def test_noise_is_sent_as_it_is_however_slow_the_line():
    squeezer = Squeezer()
    squeezer.line_took(1 << 20, 100.0)
    assert [squeezer.squeezed(NOISE) for _ in range(9)] == [None] * 9
    assert any(squeezer.squeezed(TEXT) for _ in range(9))


def test_signs_of_life_and_a_frame_that_breaks_off(tmp_path):
    life = struct.pack(">I", LIFE)
    frame = struct.pack(">I", 3) + b"abc"
    assert read_all(life + frame + life + frame[:-1]) == [b"abc"]


WATCHED = """
import os, sys, time
from deploy.onbox import frames
frames.SILENCE = 0.5
lock = sys.argv[1]
os.mkdir(lock)
line = frames.Frames(sys.stdin.buffer, lock)
assert line.next() == b"abc"
time.sleep(3)  # work of our own: the laptop may only wait
print("works", flush=True)
assert line.next() is None
time.sleep(3)
print("ended", flush=True)
"""


@pytest.mark.parametrize("silent, code, said", [(False, 0, "works ended"), (True, 3, "works")])
def test_only_a_read_that_waits_is_silence(tmp_path, silent, code, said):
    """In a process of its own, which a dead laptop's silence ends together with its lock."""
    lock = tmp_path / "lock"
    box = subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    box.stdin.write("\0\0\0\3abc")
    box.stdin.flush()
    if not silent:
        box.stdin.close()
    assert box.stdout.read().split() == said.split()
    assert box.wait(30) == code
    assert lock.exists() != silent
    box.stdin.close()


BOMB = zlib.compress(bytes(LARGEST + 1))


@pytest.mark.parametrize(
    "head, data",
    [
        (LARGEST + 1, b""),
        (len(BOMB) | ZLIB, BOMB),
        (3 | ZLIB, b"abc"),
        (len(BOMB) - 5 | ZLIB, BOMB[:-5]),
        (3 | CHANGES, b"abc"),  # on a stream that takes none
    ],
)
def test_what_makes_no_sense_is_refused(head, data):
    with pytest.raises(Refusal, match="out of step"):
        read_all(struct.pack(">I", head) + data)


def test_a_line_that_broke_is_told_to_who_writes_and_blocks_nobody():
    class Broken(Line):
        def write(self, data):
            raise BrokenPipeError("gone")

    writer = Writer(Broken())
    with pytest.raises(BrokenPipeError):
        for _ in range(50):
            writer.put(NOISE)
            time.sleep(0.01)
    writer.end()
