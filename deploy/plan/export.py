"""PURE: what an exported run needs, whichever cluster it goes to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy.errors import UsageError
from deploy.plan.config import Config

PORT = 23456  # of the workers' gRPC
INTERRUPTED = 75  # exit code: saved, the same command goes on
HOPELESS = (2, 65, 69, 70, 71, 74, 78)  # the workload's exit codes that a restart does not mend


@dataclass(frozen=True)
class Export:
    """One run for a cluster; `gpus` a worker, seconds for `grace`, GiB for sizes."""

    name: str
    command: tuple[str, ...]
    data: str
    data_path: str  # on the laptop, for clusters that carry files up
    image: str
    gpus: int
    gpu_type: str = ""
    workers: int = 1
    claim: str = "gpubox-data"
    bucket: str = ""
    shm_size: str = "2Gi"
    grace: int = 120
    idle_minutes: int = 30
    code: str = ""
    requirements: str = ""  # the user's own packages, a file on the laptop


def export_of(
    config: Config,
    args: str = "",
    image: str = "",
    gpus: str = "",
    workers: int = 1,
    name: str = "",
    claim: str = "",
    bucket: str = "",
) -> Export:
    """The run of gpubox.toml with what the command line says over it; UsageError names what lacks."""
    run = config.run
    command = (*run.command, *run.args, *args.split())
    if workers < 1:
        raise UsageError(f"--workers: expected 1 or more, got {workers}", "")
    if not run.data or run.data not in config.data:
        raise UsageError("run.data names no data set of gpubox.toml", "set [run] data")
    kind, count = gpus_of(gpus or run.gpus)
    return Export(
        name=label(name or "gpubox-" + (command[3] if len(command) > 3 else run.data)),
        command=command,
        data=run.data,
        data_path=config.data[run.data].path,
        image=image or run.image,
        gpus=count,
        gpu_type=kind,
        workers=workers,
        claim=label(claim or "gpubox-data"),
        bucket=bucket,
        shm_size=memory_quantity(run.shm_size),
        grace=round(run.stop_grace),
        idle_minutes=max(1, round(config.idle.stop_after / 60)),
        code=run.code,
        requirements=run.requirements,
    )


def packages_note(run: Export) -> list[str]:
    """Where the user's own packages must be already, as we can't put them into a finished image."""
    if not run.requirements or not run.image:
        return []
    return [
        f"Your own packages ({run.requirements}) must be in the image: images/build.py gpu"
        f" --requirements {run.requirements} puts them into ours."
    ]


def gpus_of(text: str) -> tuple[str, int]:
    """`all` → ("", 1), `2` → ("", 2), `L4` → ("L4", 1), `A100:8` → ("A100", 8), `0` → no GPU."""
    kind, _, count = text.rpartition(":") if ":" in text else ("", "", text)
    if text == "all":
        return "", 1
    if not kind and not text.isdigit():
        return text, 1
    if not count.isdigit():
        raise UsageError(f"gpus: expected a count, a type or TYPE:COUNT, got {text!r}", "--gpus L4")
    return kind, int(count)


def label(text: str) -> str:
    """A DNS label (RFC 1123) that says the same: what Kubernetes and SkyPilot take as a name."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-")
    if not plain or not plain[0].isalpha():
        raise UsageError(f"{text!r}: expected a name that begins with a letter", "--name")
    return plain


def memory_quantity(text: str) -> str:
    """Docker's `2gb`, `512m` as Kubernetes writes them: `2Gi`, `512Mi` (both count in 1024s)."""
    found = re.fullmatch(r"(\d+)\s*([bkmg]?)b?", text.strip().lower())
    if not found:
        raise UsageError(f"run.shm_size: expected a size such as 2gb, got {text!r}", "")
    return found[1] + {"": "", "b": "", "k": "Ki", "m": "Mi", "g": "Gi"}[found[2]]
