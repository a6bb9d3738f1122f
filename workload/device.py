"""Which device TensorFlow trains on: threads, the GPUs it must see, and what may mislead."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from workload.errors import GpuMissing

NOISE = re.compile(
    rb"oneDNN custom operations are on|All log messages before absl|Could not find cuda drivers"
    rb"|optimized to use available CPU|To enable the following instructions|call to cuInit"
)


def before_import() -> None:
    """Settings that TensorFlow reads as it is imported; those that the user has set stay.

    Its oneDNN kernels are on by themselves only where the processor has AVX-512 VNNI; they are the
    faster ones with AVX2 alone, too.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no chatter
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Drops the lines that TensorFlow writes on every start where there is no GPU to be had.

    No setting silences them, since they come before its logging is set up. A forked filter rather
    than a thread: where TensorFlow aborts the process, its last words still come through.
    """
    sys.stderr.flush()
    source, sink = os.pipe()
    real = os.dup(2)
    child = os.fork()
    if child == 0:
        os.close(sink)
        _filter(source, real)
    os.close(source)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.waitpid(child, 0)


def _filter(source: int, target: int) -> NoReturn:
    low, high = sorted((source, target))
    for first, last in ((3, low), (low + 1, high), (high + 1, 1 << 12)):
        os.closerange(first, last)  # above all the output folder's lock: it is the trainer's alone
    try:
        with open(source, "rb") as lines:
            for line in lines:
                if not NOISE.search(line):
                    os.write(target, line)
    finally:
        os._exit(0)


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Keeps the garbage collector away from what an import makes, then and at the end.

    The modules of TensorFlow live as long as the process: looking through them takes 0.5 s while
    they come and 1.3 s as the interpreter ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def visibility_warning(environment: dict[str, str] | os._Environ[str]) -> str:
    """What CUDA_VISIBLE_DEVICES means where somebody other than the kit set it, else ""."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or value == environment.get("GPUBOX_CUDA_VISIBLE_DEVICES"):
        return ""
    first = value.split(",")[0].strip()
    if first in ("", "-1"):
        meaning = "no GPU at all"
    elif first.isdigit():
        count = len(value.split(","))
        meaning = f"GPU number {first}" if count == 1 else f"only the {count} GPUs {value}"
        meaning += " (0 is the first GPU; -1 means none)"
    else:
        meaning = f"only the GPU {value}"
    return f"warning: CUDA_VISIBLE_DEVICES={value} is set, not by the kit: it means {meaning}"


def required_gpus(environment: dict[str, str] | os._Environ[str]) -> int:
    """How many GPUs REQUIRE_GPU asks for: 0 if unset or 0; `all` means those the driver has."""
    value = environment.get("REQUIRE_GPU", "").strip().lower()
    if value in ("", "0", "no", "false"):
        return 0
    if value == "all":
        return max(1, len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))
    if value.isdigit():
        return int(value)
    raise GpuMissing(f"REQUIRE_GPU={value}: expected a number or all")


def open_device(
    choice: str, intra: int, inter: int, deterministic: str, xla: bool = False
) -> dict[str, Any]:
    """Imports TensorFlow, pins its threads and picks the device.

    choice: auto, cpu or gpu. Returns what goes into progress.json and result.json as `device`.
    Raises GpuMissing before the first step where a GPU was asked for and is not seen.
    """
    wanted = required_gpus(os.environ)
    if choice == "cpu" and wanted:
        raise GpuMissing("--device cpu, but REQUIRE_GPU asks for a GPU; drop one of them")
    if choice == "gpu":
        wanted = max(wanted, 1)
    warning = visibility_warning(os.environ)
    if warning:
        print(warning, file=sys.stderr, flush=True)
    tf, gpus = _import_and_look(wanted)
    if choice == "cpu":
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    # TensorFlow has no deterministic gradient of max-pooling under XLA
    fixed = deterministic == "on" or (deterministic == "auto" and not gpus and not xla)
    if fixed:
        tf.config.experimental.enable_op_determinism()
    for text in other_processes() if gpus else []:
        print(text, file=sys.stderr, flush=True)
    return {
        "kind": "gpu" if gpus else "cpu",
        "names": [_name(tf, gpu) for gpu in gpus] or [cpu_name()],
        "count": max(1, len(gpus)),
        "deterministic": fixed,
        "intra_threads": intra,
        "inter_threads": inter,
    }


def _import_and_look(wanted: int) -> tuple[Any, list[Any]]:
    """(TensorFlow, the GPUs that it sees), which are `wanted` at least; GpuMissing else."""
    harmless = not wanted and not list(Path("/dev").glob("nvidia[0-9]*"))
    with without_noise() if harmless else contextlib.nullcontext(), without_collecting():
        before_import()
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < wanted:
        raise GpuMissing(_missing(wanted, len(gpus), tf))
    return tf, gpus


def _missing(wanted: int, seen: int, tf: Any) -> str:
    cause = "see the lines above, or run `nvidia-smi` in the container"
    if not tf.test.is_built_with_cuda():
        cause = "this TensorFlow is built without CUDA: take the GPU image"
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        cause = "CUDA_VISIBLE_DEVICES hides them all: unset it"
    elif not list(Path("/dev").glob("nvidia[0-9]*")):
        cause = "no /dev/nvidia* here: the container was started without a GPU, or has no driver"
    return f"{wanted} GPU(s) required, TensorFlow sees {seen}; {cause}"


def _name(tf: Any, gpu: Any) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    return str(details.get("device_name", gpu.name))


def cpu_name() -> str:
    """The processor's name as Linux gives it."""
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            if text.startswith("model name"):
                return text.split(":", 1)[1].strip()
    except OSError:
        pass
    return "CPU"


def other_processes() -> list[str]:
    """One warning for each other process that holds GPU memory, as nvidia-smi knows them."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    warnings = []
    for row in answer.stdout.splitlines():
        pid, _, mebibytes = (part.strip() for part in row.partition(","))
        if pid.isdigit() and int(pid) != os.getpid():
            warnings.append(
                f"warning: process {pid} holds {mebibytes} MiB of GPU memory; "
                "if ours runs out, end that one first"
            )
    return warnings


def cores() -> int:
    """The processors that this process may use: more threads than its quota only wait."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, math.ceil(min(allowed, quota())))


def quota(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """Processors' worth of time that the cgroups (v2 or v1) give this process; inf: no limit.

    A container sees its own group at the top, so that the path is tried and what is above it.
    """
    found = [math.inf]
    with contextlib.suppress(OSError):
        for text in own.read_text().splitlines():
            _, controllers, path = text.split(":", 2)
            if controllers == "":
                found += [_share(file.read_text()) for file in _above(root, path, "cpu.max")]
            elif "cpu" in controllers.split(","):
                for file in _above(root / "cpu", path, "cpu.cfs_quota_us"):
                    period = file.with_name("cpu.cfs_period_us").read_text()
                    found.append(_share(f"{file.read_text()} {period}"))
    return min(found)


def _above(root: Path, path: str, name: str) -> list[Path]:
    """The files `name` of a cgroup and of all above it."""
    group = root / path.lstrip("/")
    return [each / name for each in (group, *group.parents) if (each / name).is_file()]


def _share(text: str) -> float:
    """`200000 100000` → 2.0; `max 100000` and `-1 100000` → inf."""
    time, period = text.split()
    return math.inf if time in ("max", "-1") else int(time) / int(period)
