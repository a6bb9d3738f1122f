"""Calls of the program on the box: one exec a request, one JSON answer, errors as our own."""

from __future__ import annotations

import base64
import json
import shlex
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from deploy.effects.bundle import onbox_bundle
from deploy.effects.link import Done, Link, Stream
from deploy.errors import BoxUnfit, KilledThere, LinkLost, error_named
from deploy.onbox.wire import BULK, EVENT, find_answer

OnEvent = Callable[[dict[str, Any]], None]
Question = tuple[str, dict[str, Any]]  # a verb and its request

# Looked for in this order; some boxes have Python only where conda put it.
PYTHONS = "python3 python /root/miniconda3/bin/python /opt/conda/bin/python /usr/bin/python3"
ABSENT, NO_PYTHON = 98, 97
# Short requests without a secret go as an argument: OpenSSH takes a command's input only after a
# round trip, since a new session's window is 0 until its command has come.
QUESTIONS = ("cost", "facts", "idle", "status")
LONGEST = 2048  # bytes of such a request

# Lines without single quotes or "!", so that sh, bash, zsh, fish and csh pass them on unchanged.
FIND = (
    'for y in PYTHONS; do command -v "$y" >/dev/null 2>&1 && '
    '"$y" -ISc "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null && break; y=; done'
)
# First by the Python that was noted when the program was installed: looking for one takes longer
# than most requests. Without `site` (-S): where it loads much, it is most of a start.
START = (
    'p="$HOME/.gpubox/NAME"; WAIT[ -f "$p" ] && read -r y 2>/dev/null <"$HOME/.gpubox/python" && '
    f'[ -x "$y" ] && exec "$y" -S "$p" VERB; {FIND}; '
    '[ -n "$y" ] || exit 97; [ -f "$p" ] || exit 98; exec "$y" -S "$p" VERB'
)
# That it runs, and a wait for the blank line before the request.
WAIT = f'echo "{EVENT.decode()}{{\\"up\\": true}}" >&2; [ -f "$p" ] || read -r w; '
LOOK = '[ -f "$HOME/.gpubox/NAME" ]'
INSTALL = (
    'umask 077; d="$HOME/.gpubox"; mkdir -p "$d" && t="$d/.new-$$" && cat >"$t" && '
    f'[ "$(wc -c <"$t")" -eq SIZE ] && {{ {FIND}; [ -z "$y" ] || '
    '"$y" "$t" compile "$d/NAME" 2>/dev/null; mv -f "$t" "$d/NAME"; } || '
    '{ rm -f "$t"; exit 96; }'
)


class Agent:
    """The box side's verbs over one link; `folders` goes with every request."""

    def __init__(self, link: Link, folders: dict[str, str] | None = None) -> None:
        self.link = link
        self.folders = folders or {}
        self.also: dict[str, Any] = {}  # goes with every request, such as a deploy's lock
        self._ahead: dict[str, dict[str, Any]] = {}  # question → answer that came with another
        self._is_there = False  # the program on the box, as far as is known

    def call(
        self,
        verb: str,
        on_event: OnEvent | None = None,
        repeatable: bool = False,
        ahead: Sequence[Question] = (),
        **request: Any,
    ) -> dict[str, Any]:
        """Do one request and return its answer; the box's refusal is raised as a KitError.

        Only a `repeatable` request is sent again, once, where the link dies under it: of any
        other nobody knows whether the box has done it. `ahead` are questions that will be asked
        next, which the box answers along with this one: each then takes no request of its own.
        """
        if known := self._ahead.pop(_key(verb, request), None):
            return known
        if ahead:
            request["ahead"] = ahead
        line = self._line(request)
        try:
            done = self._installed(verb, line, on_event)
        except LinkLost:
            if not repeatable:
                raise
            done = self._installed(verb, line, on_event)
        answer = self.answer(verb, done)
        for question, found in zip(ahead, answer.pop("ahead", []), strict=False):
            if "ok" in found:  # a refusal is met again, by whoever asks in earnest
                self._ahead[_key(*question)] = found["ok"]
        return answer

    def _installed(self, verb: str, line: bytes, on_event: OnEvent | None) -> Done:
        done = self._run(verb, line, on_event)
        if done.code == ABSENT:
            self.install()
            done = self._run(verb, line, on_event)
        self._is_there = done.code not in (ABSENT, NO_PYTHON)
        return done

    def open(self, verb: str, **request: Any) -> Stream:
        """Start a request with bulk data; the request's line has been written."""
        if not self._is_there:
            self._put_there()
        stream = self.begin(verb)
        self.ask(stream, **request)
        return stream

    def begin(self, verb: str) -> Stream:
        """Start the program for a request that `ask` will write: the way there takes its time.

        Where the program is not there yet, it is looked for again when the request comes.
        """
        return self.link.stream(beginning(verb))

    def ask(self, stream: Stream, **request: Any) -> None:
        """Write the request; LinkLost where the connection did not come about."""
        try:
            stream.stdin.write(b"\n" + self._line(request))
            stream.stdin.flush()
        except OSError as no:
            why = _tail(stream.stderr.read())
            raise LinkLost(f"{self.link.name}: the connection broke ({why})", "try again") from no

    def answer(self, verb: str, done: Done) -> dict[str, Any]:
        return read_answer(self.link.name, verb, done)

    def _put_there(self) -> None:
        """Before a stream that is the first request: what it sends can't be sent twice."""
        script = LOOK.replace("NAME", onbox_bundle().name)
        if self.link.run(_in_shell(script)).code != 0:
            self.install()
        self._is_there = True

    def install(self) -> None:
        """Put the zipapp on the box under its hash; an existing one is never overwritten."""
        name, content = onbox_bundle()
        script = INSTALL.replace("SIZE", str(len(content))).replace("PYTHONS", PYTHONS)
        script = script.replace("NAME", name)
        done = self.link.run(_in_shell(script), content)
        if done.code != 0:
            raise BoxUnfit(
                f"{self.link.name}: ~/.gpubox can't be written: {_tail(done.stderr)}",
                "free some space in the home, or log in as another user",
            )

    def _run(self, verb: str, line: bytes, on_event: OnEvent | None) -> Done:
        argument = ""
        if verb in QUESTIONS and not self.also and len(line) <= LONGEST:
            argument, line = base64.urlsafe_b64encode(line).decode(), b""
        script = start_script(verb, argument)
        return self.link.run(_in_shell(script), line, lambda err: _event(err, on_event))

    def _line(self, request: dict[str, Any]) -> bytes:
        return json.dumps({"folders": self.folders, **self.also, **request}).encode() + b"\n"


def _key(verb: str, request: dict[str, Any]) -> str:
    return verb + json.dumps(request, sort_keys=True)


def read_answer(name: str, verb: str, done: Done) -> dict[str, Any]:
    """The answer in what a box printed; its refusal, or why there is none, is raised."""
    answer = find_answer(done.stdout)
    if answer is None:
        raise _no_answer(name, verb, done)
    if "error" in answer:
        error = answer["error"]
        fault = error_named(error["kind"])(f"{name}: {error['message']}", error["hint"])
        fault.on_the_box = error.get("traceback", "")
        raise fault
    return dict(answer["ok"])


# ssh's own code for a lost link, and how a program ends that a closing session or a shutdown ends
GOING_DOWN = (255, -1, -15, 143, 129)


def _no_answer(name: str, verb: str, done: Done) -> Exception:
    if done.code == NO_PYTHON:
        hint = f"install it there: fab bootstrap --host {name}"
        return BoxUnfit(f"{name}: no Python 3.8 or newer", hint)
    if done.code in GOING_DOWN:
        return LinkLost(f"{name}: the connection died during {verb}", "the same command goes on")
    if done.code in (-9, 137):
        return KilledThere(
            f"{name}: {verb} was killed on the box", "is its memory full? fab doctor says"
        )
    return BoxUnfit(f"{name}: {verb} ended with {done.code}: {_tail(done.stderr)}", "fab doctor")


def read_frames(stdout: IO[bytes]) -> Iterator[bytes]:
    """The frames of a bulk answer, past any noise before them; LinkLost where they break off."""
    while True:
        line = stdout.readline()
        if not line:
            raise LinkLost("the box ended before it sent anything", "the same command goes on")
        if line == BULK:
            break
    while length := struct.unpack(">I", _exactly(stdout, 4))[0]:
        yield _exactly(stdout, length)


def _exactly(stdout: IO[bytes], count: int) -> bytes:
    data = stdout.read(count)
    while len(data) < count:
        more = stdout.read(count - len(data))
        if not more:
            raise LinkLost("the stream from the box broke off", "the same command goes on")
        data += more
    return data


def start_script(verb: str, argument: str = "", waits: bool = False) -> str:
    """The line that runs a verb on a box, without single quotes or exclamation marks in it.

    argument  its request in URL-safe base64; "" where it comes by standard input
    waits     for a line of input where the program is not there, as it may be by then; says with
              an event that it has been reached
    """
    script = START.replace("PYTHONS", PYTHONS).replace("NAME", onbox_bundle().name)
    script = script.replace("WAIT", WAIT if waits else "")
    words = [verb, argument] if argument else [verb]
    return script.replace("VERB", shlex.join(words))


def beginning(verb: str) -> str:
    """The command that `Agent.begin` runs on a box."""
    return _in_shell(start_script(verb, waits=True))


def _in_shell(script: str) -> str:
    assert "'" not in script and "!" not in script and "\n" not in script
    return f"exec /bin/sh -c '{script}'"


def _event(line: bytes, on_event: OnEvent | None) -> None:
    if on_event and line.startswith(EVENT):
        on_event(json.loads(line[len(EVENT) :]))


def _tail(text: bytes) -> str:
    lines = [each for each in text.splitlines() if not each.startswith(EVENT)]
    return (lines or [b"no reason given"])[-1].decode(errors="replace")[:200]
