"""How requests and answers travel: whole or not at all, past any noise, a sign of life in between."""

import io
import json
import struct

import pytest

from deploy.effects.agent import read_frames
from deploy.errors import LinkLost
from deploy.onbox import wire as wires
from deploy.onbox.wire import EVENT, Wire, find_answer


def written(act):
    """What a Wire puts on stdout and stderr while `act` uses it."""
    out, err = io.BytesIO(), io.BytesIO()
    act(Wire(io.BytesIO(), out, err))
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    "noise", [b"", b"Welcome!\n", b"no newline", b"@gpubox-answer\n", b"\xff\0"]
)
def test_an_answer_is_found_behind_any_noise(noise):
    printed, _ = written(lambda wire: wire.answer({"ok": {"n": 1}}))
    assert find_answer(noise + printed + b"\nlogout\n") == {"ok": {"n": 1}}


def test_an_answer_that_is_cut_anywhere_is_no_answer():
    printed, _ = written(lambda wire: wire.answer({"ok": {"text": "x" * 50}}))
    for length in range(len(printed) - 1):
        assert find_answer(printed[:length]) is None


def test_text_that_looks_like_a_mark_does_not_end_an_answer():
    value = {"ok": {"text": "\n@gpubox-end\n@gpubox-answer\n"}}
    printed, _ = written(lambda wire: wire.answer(value))
    assert find_answer(printed) == value  # JSON writes its newlines as \\n


def bulk(*frames):
    def act(wire):
        wire.start_bulk()
        for frame in (*frames, b""):
            wire.frame(frame)
        wire.answer({"ok": {}})

    return written(act)[0]


def test_frames_come_back_as_they_were_and_the_answer_behind_them():
    frames = [b"one", bytes(range(256)) * 300, b"\n@gpubox-answer\n"]
    stream = io.BytesIO(b"Welcome, no newline" + bulk(*frames))
    assert list(read_frames(stream)) == frames
    assert find_answer(stream.read()) == {"ok": {}}


def test_a_stream_that_breaks_off_anywhere_is_lost_never_shorter():
    whole = bulk(b"a" * 40, b"b" * 40)
    end = whole.index(struct.pack(">I", 0) + b"\n@gpubox-answer") + 4
    for length in range(end):
        with pytest.raises(LinkLost):
            list(read_frames(io.BytesIO(whole[:length])))
    assert len(list(read_frames(io.BytesIO(whole[:end])))) == 2


def test_a_request_is_one_line_and_the_rest_is_left_for_the_verb():
    wire = Wire(io.BytesIO(b'{"a": 1}\nrest of it'), io.BytesIO(), io.BytesIO())
    assert wire.request() == {"a": 1}
    assert wire.input.read() == b"rest of it"


def test_a_laptop_that_went_away_does_not_end_the_work():
    class Broken(io.BytesIO):
        def write(self, data):
            raise BrokenPipeError

    Wire(io.BytesIO(), io.BytesIO(), Broken()).event(done=1)


def test_while_nothing_is_said_a_sign_of_life_is(monkeypatch):
    import threading

    alive = threading.Event()

    class Ear(io.BytesIO):
        def write(self, data):
            if json.loads(data[len(EVENT) :]) == {"alive": True}:
                alive.set()

    monkeypatch.setattr(wires, "BEAT", 0.05)
    Wire(io.BytesIO(), io.BytesIO(), Ear()).beat_for_ever()
    assert alive.wait(10)
