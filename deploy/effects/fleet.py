"""Asks many boxes at once: one exec each by the system's ssh, each with a deadline of its own."""

from __future__ import annotations

import glob
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploy.effects.agent import ABSENT, read_answer, start_script
from deploy.effects.link import Done
from deploy.effects.target import ssh_options
from deploy.errors import BoxUnfit, ConnectError, HostKeyError, KitError, LinkLost

AT_ONCE = 32  # an ssh client takes 1 to 2 MiB
CHEAPEST = "ecdh-sha2-nistp256"
FEW = 4  # boxes, for which no settings are made
FRESH = (
    'f="$HOME/.gpubox/overview.json"; if [ -n "$(find "$f" -mmin -2 2>/dev/null)" ]; then '
    'echo @gpubox-answer; cat "$f" && echo && echo @gpubox-end; else REST; fi'
)


@dataclass(frozen=True)
class Asked:
    """A box to ask: how ssh is called for it, and the line that it is sent."""

    name: str
    ssh_name: str  # "local": this machine
    options: tuple[str, ...]
    request: bytes


@dataclass(frozen=True)
class Reply:
    """What came back: `answer`, or the `fault` that kept it away."""

    name: str
    answer: Mapping[str, Any] | None
    fault: KitError | None


def asked(name: str, host: str, user: str, port: int, config_file: str, request: bytes) -> Asked:
    return Asked(name, host or name, tuple(ssh_options(config_file, user, port)), request)


def ask_all(boxes: Sequence[Asked], deadline: float) -> Iterator[Reply]:
    """Replies as they come. A box that does not answer costs its own deadline and nobody else's,
    as long as no more than AT_ONCE of them are silent."""
    if shutil.which("ssh") is None and any(each.ssh_name != "local" for each in boxes):
        raise BoxUnfit("many boxes at once need the ssh program", "install OpenSSH; or --host BOX")
    with (
        tempfile.TemporaryDirectory(prefix="gpubox-") as folder,
        ThreadPoolExecutor(min(AT_ONCE, max(1, len(boxes)))) as pool,
    ):
        boxes = with_quick_exchange(boxes, Path(folder)) if len(boxes) > FEW else boxes
        script = FRESH.replace("REST", start_script("overview"))
        for each in as_completed([pool.submit(ask, box, script, deadline) for box in boxes]):
            yield each.result()


def with_quick_exchange(boxes: Sequence[Asked], folder: Path) -> list[Asked]:
    """The boxes with a cheap key exchange, where the user's own settings name none.

    OpenSSH 8.5 to 9.8 begins with sntrup761, whose keys cost an ssh client 0.1 s of its processor:
    with 100 boxes that is most of all work. What the user's or the system's settings say holds,
    since ssh takes the first value that it reads.
    """
    quick = quick_exchange(_default_exchange())
    if not quick:
        return list(boxes)
    alike = {each.options for each in boxes}  # most have the same
    settled = {options: _settled(options, quick, folder) for options in alike}
    return [replace(each, options=settled[each.options]) for each in boxes]


def quick_exchange(methods: Sequence[str]) -> list[str]:
    """The same methods with the cheapest first (P-256: 4 ms less at each end than X25519) and
    sntrup761 last; none where something else than that comes first anyway."""
    slow = [each for each in methods if "sntrup761" in each]
    if not slow or methods[0] not in slow:
        return []
    return sorted(methods, key=lambda each: (each in slow, each != CHEAPEST))


def _default_exchange() -> list[str]:
    """The key exchanges of the system's ssh in its own order, before any settings."""
    command = ["ssh", "-F", "none", "-G", "--", "box"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = re.search(r"^kexalgorithms (\S+)$", done.stdout, re.MULTILINE)
    return found[1].split(",") if found else []


def _settled(options: Sequence[str], quick: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Options by whose settings the user's own are read first, and then the exchange is named."""
    words, read = list(options), ["~/.ssh/config", "/etc/ssh/ssh_config"]
    if "-F" in words:
        at = words.index("-F")
        read = [glob.escape(words[at + 1])]
        del words[at : at + 2]
    lines = [*(f'Include "{each}"' for each in read), "Match all"]
    text = "\n".join([*lines, f"  KexAlgorithms {','.join(quick)}", ""])
    settings = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    settings.write_text(text, encoding="utf-8")
    return ("-F", str(settings), *words)


def ask(box: Asked, script: str, deadline: float) -> Reply:
    """One box. Its overview is read by the shell where its keeper keeps one, else by our program."""
    command = f"exec /bin/sh -c '{script}'"
    words = ["/bin/sh", "-c", command] if box.ssh_name == "local" else _ssh(box, command, deadline)
    try:
        done = subprocess.run(words, input=box.request, capture_output=True, timeout=deadline)
    except subprocess.TimeoutExpired:
        why = f"{box.name}: no answer within {deadline:.0f} s"
        return Reply(box.name, None, LinkLost(why, f"is it on? fab doctor --host {box.name}"))
    return read_reply(box.name, Done(done.returncode, done.stdout, done.stderr))


def _ssh(box: Asked, command: str, deadline: float) -> list[str]:
    options = {"BatchMode": "yes", "StrictHostKeyChecking": "yes", "Compression": "no"}
    options["ConnectTimeout"] = str(max(1, round(deadline)))
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", "-T", *box.options, *flags, "--", box.ssh_name, command]


def read_reply(name: str, done: Done) -> Reply:
    if done.code == ABSENT:
        fault: KitError = BoxUnfit(f"{name}: the kit is not on it yet", f"fab deploy --host {name}")
        return Reply(name, None, fault)
    if done.code == 255:
        return Reply(name, None, _ssh_fault(name, done))
    try:
        return Reply(name, read_answer(name, "overview", done), None)
    except KitError as no:
        return Reply(name, None, no)


def _ssh_fault(name: str, done: Done) -> KitError:
    """What ssh says on stderr, as one of our errors."""
    text = done.stderr.decode(errors="replace")
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in text:
        return HostKeyError(f"{name}: THE HOST KEY HAS CHANGED", f"fab doctor --host {name}")
    if re.search(r"Host key verification failed|No .* host key is known", text):
        return HostKeyError(f"{name}: unknown host key", f"fab facts --host {name}")
    last = ([line for line in text.splitlines() if line.strip()] or ["no reason given"])[-1]
    return ConnectError(f"{name}: {last.strip()}", f"fab doctor --host {name}")
