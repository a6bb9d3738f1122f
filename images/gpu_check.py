"""Refuses to go on where a GPU is required and is not truly there: one line says why, and the remedy.

Standard library only up to the last step, which asks TensorFlow itself. Runs in the images, and
on a box with the Python of the process runner. Exit codes: 0 a GPU was found, 69 none usable.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

UNUSABLE = 69  # EX_UNAVAILABLE

# What TensorFlow 2.21's GPU wheel asks for (CUDA 12.5 build): driver >= 525.60.13 speaks CUDA 12.0;
# its kernels are sm_60 to sm_89 and PTX for newer cards; Blackwell (sm_100 on) needs CUDA 12.8.
MIN_CUDA = (12, 0)
MIN_CUDA_BLACKWELL = (12, 8)
MIN_CAPABILITY = (6, 0)
LAST_COMPILED = (9, 0)

# The libraries that TensorFlow opens by name; one missing and it goes on without any GPU. The first
# is the driver's: the container toolkit brings it where NVIDIA_DRIVER_CAPABILITIES has "utility".
LIBRARIES = (
    "libnvidia-ml.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)

# cuInit's and cuDeviceGetCount's errors that have a remedy of their own (CUresult of the driver API).
CUDA_ERRORS = {
    34: "a stub of libcuda.so.1 was loaded, not the driver: take CUDA's stubs out of LD_LIBRARY_PATH",
    100: "the driver is there, but no GPU: give the container one (compose: deploy.resources."
    "reservations.devices; docker run: --gpus all), or look with nvidia-smi whether the box has one",
    101: "CUDA_VISIBLE_DEVICES names a GPU that is not there: unset it, or name one that exists",
    802: "the GPUs are not ready yet (fabric manager): wait, or start nvidia-fabricmanager on the box",
    803: "driver library and kernel driver differ in version: reboot the box after a driver upgrade",
    804: "CUDA's forward compatibility is not for this GPU: take cuda-compat out of LD_LIBRARY_PATH",
    999: "the driver failed (unknown error): see dmesg for Xid; reloading nvidia_uvm or a reboot helps",
}


class NoGpu(Exception):
    """One line: what is missing, and the remedy."""


@dataclass(frozen=True)
class Gpu:
    """A device as the driver names it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


def dotted(version: tuple[int, int]) -> str:
    """(12, 8) → "12.8"."""
    return f"{version[0]}.{version[1]}"


def check_settings(environ: dict[str, str]) -> None:
    """Refuse an environment that hides every GPU."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "none", "NoDevFiles"):
        raise NoGpu(
            f"CUDA_VISIBLE_DEVICES={visible} hides every GPU: unset it (also in the env file), "
            "or ask for the CPU (cpu-train)"
        )


def check_image() -> None:
    """Refuse a TensorFlow that was built without CUDA."""
    names = {
        name.lower().replace("_", "-")
        for d in metadata.distributions()
        if (name := d.metadata["Name"])
    }
    if "tensorflow-cpu" in names and "tensorflow" not in names:
        raise NoGpu(
            "this is the CPU image (tensorflow-cpu), but a GPU was asked for: "
            "use the GPU image (gpu-train; fab build --device gpu)"
        )


def load_driver(environ: dict[str, str]) -> ctypes.CDLL:
    """Load libcuda.so.1, or say what keeps it away."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        reason = str(error)
    if "cannot open shared object" in reason and reason.startswith("libcuda.so.1"):
        raise NoGpu(
            "no driver library (libcuda.so.1) here: the box has no NVIDIA driver, or the container "
            "was started without its GPUs (nvidia-container-toolkit; see fab doctor)"
        )
    path = environ.get("LD_LIBRARY_PATH")
    hint = f": LD_LIBRARY_PATH={path} is in the way, unset it" if path else ""
    raise NoGpu(f"the driver library can't be loaded ({reason}){hint}")


def ask(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of the driver API; raise NoGpu with the remedy for its error."""
    code = getattr(driver, function)(*arguments)
    if code != 0:
        raise NoGpu(CUDA_ERRORS.get(code, f"the driver's {function} failed with error {code}"))


def driver_version(driver: ctypes.CDLL) -> tuple[int, int]:
    """The CUDA version that the driver speaks: 12050 → (12, 5)."""
    number = ctypes.c_int()
    ask(driver, "cuDriverGetVersion", ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def read_gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    """Name, compute capability and memory of the device `index`."""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    ask(driver, "cuDeviceGet", ctypes.byref(device), index)
    ask(driver, "cuDeviceGetName", name, len(name), device)
    ask(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    # 75 and 76: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    ask(driver, "cuDeviceGetAttribute", ctypes.byref(major), 75, device)
    ask(driver, "cuDeviceGetAttribute", ctypes.byref(minor), 76, device)
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), memory.value)


def check_driver(driver: ctypes.CDLL) -> tuple[tuple[int, int], list[Gpu]]:
    """The driver's CUDA version and its devices; NoGpu where they don't serve this TensorFlow."""
    version = driver_version(driver)
    if version < MIN_CUDA:
        raise NoGpu(
            f"the driver is too old: it speaks CUDA {dotted(version)}, TensorFlow needs "
            f"{dotted(MIN_CUDA)}: install NVIDIA driver 525.60.13 or newer on the box"
        )
    ask(driver, "cuInit", 0)
    count = ctypes.c_int()
    ask(driver, "cuDeviceGetCount", ctypes.byref(count))
    if count.value == 0:
        raise NoGpu(CUDA_ERRORS[100])
    gpus = [read_gpu(driver, index) for index in range(count.value)]
    for gpu in gpus:
        check_capability(gpu, version)
    return version, gpus


def check_capability(gpu: Gpu, version: tuple[int, int]) -> None:
    """Refuse a card for which TensorFlow or the driver has no code."""
    if gpu.capability < MIN_CAPABILITY:
        raise NoGpu(
            f"{gpu.name} has compute capability {dotted(gpu.capability)}; this TensorFlow has code "
            f"from {dotted(MIN_CAPABILITY)} on: take another box, or an older TensorFlow"
        )
    if gpu.capability >= (10, 0) and version < MIN_CUDA_BLACKWELL:
        raise NoGpu(
            f"the driver is too old for {gpu.name}: it speaks CUDA {dotted(version)}, the card needs "
            f"{dotted(MIN_CUDA_BLACKWELL)}: install NVIDIA driver 570.26 or newer on the box"
        )


def missing_libraries() -> list[str]:
    """What the loader says about each CUDA library that can't be opened."""
    missing = []
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            missing.append(str(error))
    return missing


def required(environ: dict[str, str]) -> int:
    """How many GPUs REQUIRE_GPU asks for, at least 1 (that is what this check is for)."""
    value = environ.get("REQUIRE_GPU", "").strip()
    return max(1, int(value)) if value.isdigit() else 1


def check_tensorflow(environ: dict[str, str]) -> int:
    """How many GPUs TensorFlow itself lists, asked in a process of its own; NoGpu if too few."""
    code = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    last = done.stdout.split()[-1:]
    if done.returncode != 0 or not last:
        words = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NoGpu(f"TensorFlow does not start (exit {done.returncode}): {words[0]}")
    if last == ["0"]:
        path = environ.get("LD_LIBRARY_PATH")
        hint = f"; LD_LIBRARY_PATH={path} may be in the way" if path else ""
        reasons = "; ".join(missing_libraries()) or "no library is missing"
        raise NoGpu(f"the driver sees a GPU, TensorFlow sees none ({reasons}{hint})")
    if int(last[0]) < required(environ):
        raise NoGpu(f"{required(environ)} GPUs are required, TensorFlow sees {last[0]}")
    return int(last[0])


def describe(version: tuple[int, int], gpus: list[Gpu], seen: int, environ: dict[str, str]) -> str:
    """The one line for a GPU that was found."""
    names = ", ".join(
        f"{gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]}, {gpu.memory / 2**30:.0f} GiB)"
        for gpu in gpus
    )
    line = f"GPU found: {names}; driver CUDA {dotted(version)}; TensorFlow sees {seen}"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        line += f"; CUDA_VISIBLE_DEVICES={visible} means GPU {visible} and no other, not the CPU"
    if any(gpu.capability > LAST_COMPILED for gpu in gpus):
        cache = environ.get("CUDA_CACHE_PATH", "~/.nv")
        line += f"; a first start compiles for this card, up to half an hour, kept in {cache}"
    return line


def main(arguments: list[str] | None = None) -> int:
    """Check all, say one line (or one JSON object), return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    as_json = parser.parse_args(arguments).json
    environ = dict(os.environ)
    try:
        check_settings(environ)
        check_image()
        version, gpus = check_driver(load_driver(environ))
        seen = check_tensorflow(environ)
    except NoGpu as problem:
        report = {"schema": 1, "ok": False, "message": str(problem)}
        print(
            json.dumps(report) if as_json else f"gpubox: no GPU: {problem}", file=_stream(as_json)
        )
        return UNUSABLE
    report = {"schema": 1, "ok": True, "message": describe(version, gpus, seen, environ)}
    report.update(cuda=dotted(version), gpus=[asdict(gpu) for gpu in gpus], tensorflow_gpus=seen)
    print(json.dumps(report) if as_json else f"gpubox: {report['message']}", file=_stream(as_json))
    return 0


def _stream(as_json: bool) -> object:
    """Answers go to stdout, notices to stderr."""
    return sys.stdout if as_json else sys.stderr


if __name__ == "__main__":
    sys.exit(main())
