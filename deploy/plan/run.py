"""PURE: a run's id, and the request that makes one from the config and the command line."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from deploy.errors import UsageError
from deploy.plan.config import Box, RunRule

PHASES = ("queue", "prepare", "stage", "start", "first step")  # in the order of their doing
ID = re.compile(r"[0-9]{8}-[0-9]{4}-[a-z0-9][a-z0-9-]{0,30}-[0-9a-f]{4}")


def run_id(moment: float, slug: str, salt: str) -> str:
    """`20261130-0930-cnn-3f9a`: UTC, so that ids sort by time wherever they were made.

    moment  seconds since 1970
    slug    what it is, as `slug_of` gives it
    salt    hexadecimal digits, of which four are used
    """
    when = datetime.fromtimestamp(moment, timezone.utc).strftime("%Y%m%d-%H%M")
    return f"{when}-{slug}-{salt[:4]}"


def slug_of(command: Sequence[str]) -> str:
    """What a command trains, in a word: `cnn` of `python -m workload cnn`, `train` of `train.py`."""
    words = [word for word in command if not word.startswith("-")]
    if "workload" in words and words[-1] != "workload":
        word = words[words.index("workload") + 1]
    else:
        named = [word for word in words if word not in ("python", "python3", "bash", "sh", "-m")]
        word = named[0].rsplit("/", 1)[-1].split(".")[0] if named else "run"
    slug = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:30].strip("-")
    return slug or "run"


def full_command(rule: RunRule, args: str) -> list[str]:
    """The program with its arguments; `--args "…"` comes after those of the config."""
    try:
        more = shlex.split(args)
    except ValueError as no:
        raise UsageError(f"--args: {no}", 'such as --args "--steps 2000"') from no
    command = [*rule.command, *rule.args, *more]
    if not rule.command:
        raise UsageError("run.command is empty", "name the program in gpubox.toml")
    return command


def fingerprint(command: Sequence[str], code: str, requirements: str, env: str) -> str:
    """The same for two runs of exactly the same program, arguments, packages and variables."""
    parts = ["\0".join(command), code, requirements, env]
    return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def uses_workload(command: Sequence[str]) -> bool:
    """True where the command is the kit's own workload."""
    return list(command[1:3]) == ["-m", "workload"]


def launch_request(
    name: str, box: Box, rule: RunRule, command: Sequence[str], extra: Mapping[str, Any]
) -> dict[str, Any]:
    """What the box is asked for; `extra` wins, apart from its Nones and empty strings."""
    own_python = bool(box.python) and not uses_workload(command)
    request: dict[str, Any] = {
        "box": name,
        "command": list(command),
        "runner": box.runner,
        "device": box.device,
        "gpus": rule.gpus,
        "shm_size": rule.shm_size,
        "memory": rule.memory,
        "stop_grace": rule.stop_grace,
        "python": box.python,
        "needs": "" if own_python else "tensorflow",
        "image": rule.image,
        "price_per_hour": box.price_per_hour,
        "currency": box.currency,
        "provider": box.provider,
    }
    return {**request, **{key: value for key, value in extra.items() if value not in (None, "")}}


def check_env(text: str, device: str) -> list[str]:
    """What is to be said about a file of variables; UsageError for what contradicts the device."""
    said = []
    for number, line in enumerate(text.splitlines(), 1):
        key, found, value = line.partition("=")
        if not line.strip() or line.startswith("#"):
            continue
        if not found or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise UsageError(
                f"env file, line {number}: expected KEY=VALUE", "values need no quotes"
            )
        if key != "CUDA_VISIBLE_DEVICES":
            continue
        if value.strip() in ("-1", "") and device == "gpu":
            raise UsageError(
                f"env file, line {number}: {line} hides every GPU, but a GPU is asked for",
                "take the line out, or ask for --device cpu",
            )
        if value.strip() not in ("-1", ""):
            said.append(
                f"env file: {line} means the GPU number {value.strip()}, not the CPU; the kit"
                " gives a run its GPUs (--gpus, --device cpu) and overrides it"
            )
    return said


def phases_line(phases: Mapping[str, float]) -> str:
    """`queue 0.0 s, prepare 0.2 s, …, first step 4.1 s`: where the time went."""
    known = [name for name in PHASES if name in phases]
    return ", ".join(f"{name} {phases[name]:.1f} s" for name in known)


def progress_line(progress: Mapping[str, Any] | None) -> str:
    """`step 1200 of 20000, loss 0.123, 33.1 steps/s` from a progress.json; "" without one."""
    if not progress:
        return ""
    parts = [f"step {progress.get('step', '?')}"]
    if progress.get("steps"):
        parts[0] += f" of {progress['steps']}"
    if isinstance(progress.get("loss"), (int, float)):
        parts.append(f"loss {progress['loss']:.4f}")
    if isinstance(progress.get("steps_per_second"), (int, float)):
        parts.append(f"{progress['steps_per_second']:.1f} steps/s")
    return ", ".join(parts)


def state_line(state: Mapping[str, Any]) -> str:
    """The state with what explains it: `failed: exit code 3: …`, `queued: GPU 0 is used by …`."""
    why = (state.get("ending") or {}).get("text", "")
    if state["state"] == "queued":
        why = state.get("waits_for", "")
    elif state["state"] in ("created", "staging"):
        why = state.get("doing", "")
    return f"{state['state']}: {why}" if why and why != state["state"] else str(state["state"])
