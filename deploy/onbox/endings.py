"""PURE: why a run ended, told apart and said in one line, and which state that makes."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

FINISHED, NAN, GPU_MISSING, DATA, CHECKPOINT, CHANGED, INTERRUPTED = 0, 70, 69, 65, 74, 78, 75
MEMORY, USAGE, IN_USE = 71, 2, 73
FULL = 16 << 20  # bytes; with less room than that a save can't have worked


class Facts(NamedTuple):
    """What is known when the program has ended."""

    exit_code: int | None  # None: nobody could wait for it; -N: by signal N
    intent: dict[str, Any] | None = None
    out_of_memory: int = 0  # processes that the kernel killed for lack of memory, children too
    engine_lost: bool = False
    rebooted: bool = False
    lost_gpus: tuple[str, ...] = ()
    free_bytes: int | None = None
    finished: bool = False  # the program has written its result.json in this attempt
    tail: tuple[str, ...] = ()
    worker: bool = False  # one of several: it may have ended because another one did


class Ending(NamedTuple):
    """The state, the kind of reason (one word), and the line that people read."""

    state: str
    kind: str
    text: str


def why_ended(facts: Facts) -> Ending:
    """An intent decides whatever the exit code; without one: 0, 75, anything else."""
    if facts.intent:
        by = str(facts.intent.get("by", "somebody"))
        state = "interrupted" if facts.intent.get("then") == "interrupted" else "stopped"
        if facts.exit_code == FINISHED and facts.finished:
            return Ending("finished", "finished", f"finished just as it was to be stopped by {by}")
        verb = "stopped" if state == "stopped" else "interrupted"
        return Ending(state, "stopped", f"{verb} by {by}{_unsaved(facts)}")
    if facts.rebooted:
        return Ending("interrupted", "reboot", "the box was switched off or rebooted under it")
    if facts.engine_lost:
        return Ending("interrupted", "engine", "the container engine died or was restarted")
    if facts.exit_code is None:
        return _unknown(facts)
    if facts.exit_code == FINISHED:
        return _zero(facts)
    return _failed(facts)


def _unsaved(facts: Facts) -> str:
    """What an end by somebody's will cost, where the program did not end as asked."""
    if facts.exit_code in (-9, 137):
        return ", killed after its grace: the work since its last checkpoint is lost"
    if facts.exit_code in (None, FINISHED, INTERRUPTED, -15, 143):
        return ""
    if _disk_full(facts):
        return ", with the disk of the runs full: the work since its last checkpoint is lost"
    return f", but ended with {_code(facts.exit_code)}: its last checkpoint may be an older one"


def _disk_full(facts: Facts) -> bool:
    full = facts.free_bytes is not None and facts.free_bytes < FULL
    return full or "No space left" in "\n".join(facts.tail)


def _unknown(facts: Facts) -> Ending:
    if facts.finished:
        return Ending("finished", "finished", "finished while its supervisor was away")
    return Ending("interrupted", "lost", "it ended while its supervisor was away")


def _zero(facts: Facts) -> Ending:
    if facts.out_of_memory and not facts.finished:
        text = "a child process was killed for lack of memory, and the program ended as if well"
        return Ending("failed", "out-of-memory", text)
    also = "; a child process was killed for lack of memory" if facts.out_of_memory else ""
    return Ending("finished", "finished", "finished" + also)


def _failed(facts: Facts) -> Ending:
    code, tail = facts.exit_code, "\n".join(facts.tail)
    if _disk_full(facts):
        state = "interrupted" if code == INTERRUPTED else "failed"
        return Ending(state, "disk-full", "the disk of the runs is full")
    if code == INTERRUPTED:
        return Ending("interrupted", "interrupted", "it saved and asked to be resumed (exit 75)")
    if facts.lost_gpus:
        return Ending("failed", "gpu-lost", "lost its GPU " + ", ".join(facts.lost_gpus))
    if facts.out_of_memory:
        return Ending("failed", "out-of-memory", "killed for lack of memory (RAM)")
    if re.search(r"RESOURCE_EXHAUSTED|ResourceExhausted|CUDA_ERROR_OUT_OF_MEMORY", tail):
        return Ending("failed", "gpu-memory", "the GPU's memory was not enough" + _last(facts))
    if re.search(
        r"CUDA_ERROR_(ECC|ILLEGAL|LAUNCH|DEVICE|UNKNOWN)|Unable to determine the dev", tail
    ):
        return Ending("failed", "gpu-lost", "the GPU failed" + _last(facts))
    known = {
        NAN: ("nan", "the loss became NaN or infinite"),
        GPU_MISSING: ("no-gpu", "a GPU was asked for and can't be used"),
        DATA: ("data", "the data set can't be trained on"),
        CHECKPOINT: ("checkpoint", "no checkpoint can be read"),
        CHANGED: ("arguments", "the checkpoint was made with other arguments"),
        MEMORY: ("memory", "the memory of the GPU, or of the machine, did not suffice"),
    }
    if code in known:
        kind, text = known[code]
        return Ending("failed", kind, f"{text} (exit {code}){_last(facts)}")
    if code == IN_USE and "trains in this folder" in tail:  # as after a box that died on /data
        return Ending("interrupted", "in-use", f"its folder is in use (exit {code}){_last(facts)}")
    if facts.worker and code != USAGE:
        text = f"a worker ended ({_code(code or 0)}); all go on together from the last checkpoint"
        return Ending("interrupted", "worker", text)
    return Ending("failed", "exit-code", _code(code or 0) + _last(facts))


def _code(code: int) -> str:
    signal = -code if code < 0 else code - 128 if code > 128 else 0
    return f"killed by signal {signal}" if signal else f"exit code {code}"


def _last(facts: Facts) -> str:
    lines = [line.strip() for line in facts.tail if line.strip()]
    return f": {lines[-1][:200]}" if lines else ""
