"""Slims an installed /opt/venv and splits it into layers; runs inside an image build only.

What goes is what no training uses: C++ headers, the tests of other people's packages, libclang,
profilers' libraries, debug symbols of TensorFlow's own libraries. NVIDIA's binaries stay as they
were delivered, and every licence file stays.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

VENV = Path("/opt/venv")
LAYERS = Path("/opt/layers")

# Relative to site-packages. `tensorflow/lite` must stay: tensorflow imports it.
UNUSED = (
    "clang",
    "tensorflow/include",
    "tensorflow/xla_aot_runtime_src",
    # Exporting to StableHLO and building XLA operations by hand; jit_compile needs neither.
    "tensorflow/compiler/mlir/stablehlo/stablehlo_extension.so",
    "tensorflow/compiler/tf2xla/ops/_xla_ops.so",
    "tensorboard_data_server",  # TensorBoard reads event files by itself where it is absent
    "keras/**/*_test.py",
    "keras/src/backend/jax",  # Keras imports the one backend that is there
    "keras/src/backend/openvino",
    "keras/src/backend/torch",
    "numpy/_core/include",
    "numpy/*/tests",
    "numpy/tests",
    "numpy/_core/_simd.*.so",  # only numpy's own tests import these two
    "numpy/_core/*_tests.*.so",
    "h5py/tests",
    "setuptools",  # named by tensorflow and needed by nothing at run time
    "_distutils_hack",
    "distutils-precedence.pth",
    "pkg_resources",
    "wheel",
    "numpy/f2py",  # wraps Fortran sources; there is no compiler in the image
    "*-stubs",
    "**/*.pyi",
    "nvidia/*/include",
    "nvidia/cusolver/lib/libcusolverMg.so*",  # several GPUs in one solver: TensorFlow never loads it
    "nvidia/curand",  # TensorFlow has its own generators
    "nvidia/cuda_nvrtc/lib/*.alt.so*",
    "nvidia/cuda_cupti/lib/libnvperf*",
    "nvidia/cuda_cupti/lib/libpcsamplingutil*",
    "nvidia/cuda_cupti/lib/libcheckpoint*",
    "nvidia/cuda_nvcc/bin/nvcc",
    "nvidia/cuda_nvcc/bin/cudafe++",
    "nvidia/cuda_nvcc/nvvm/bin",
)
# Each goes into a layer of its own, so that a new TensorFlow does not ship CUDA again.
SPLIT = ("nvidia", "tensorflow")
COMPILERS = 8  # processes, however many cores there are: see compile_all


def remove_unused(site: Path) -> None:
    """Remove what UNUSED names, and bytecode that is compiled anew below."""
    for pattern in (*UNUSED, "**/__pycache__"):
        for path in sorted(site.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def prune_records(site: Path) -> None:
    """Drop what was removed from each package's RECORD, so that it tells the truth (and is small)."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if (site / line.rsplit(",", 2)[0].strip('"')).exists()]
        record.write_text("".join(kept), encoding="utf-8")


def strip_symbols(site: Path) -> None:
    """Strip debug symbols from all shared libraries but NVIDIA's.

    Some wheels' libraries are laid out by patchelf in ways that strip refuses, and that an older one
    (binutils 2.40) breaks without a word: these are kept whole.
    """
    for path in sorted(site.rglob("*.so*")):
        if path.is_file() and not path.is_symlink() and "nvidia" not in path.parts:
            mode, slim = path.stat().st_mode, path.with_name(path.name + ".slim")
            command = ["strip", "--strip-unneeded", "-o", str(slim), str(path)]
            done = subprocess.run(command, stderr=subprocess.DEVNULL)
            if done.returncode == 0 and loadable(slim.read_bytes()):
                slim.replace(path)
                path.chmod(mode)
            slim.unlink(missing_ok=True)


def loadable(library: bytes) -> bool:
    """Whether each segment of a 64-bit little-endian ELF file lies in it as ld.so maps it: offset and
    address equal modulo the alignment (System V ABI, "Program Loading")."""
    (start,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    for at in range(start, start + size * count, size):
        kind, _, offset, address = struct.unpack_from("<IIQQ", library, at)
        (align,) = struct.unpack_from("<Q", library, at + 48)
        if kind == 1 and align > 1 and (offset - address) % align:
            return False
    return True


def compile_all(site: Path) -> None:
    """Compile all modules; a user without write access would compile again at every start.

    The same sources give the same bytes: the Dockerfiles fix PYTHONHASHSEED, for sets in bytecode are
    written in the order of their hashes, and each process compiles the same files in the same order,
    for what marshal writes of a string depends on what else its process holds of it.
    """
    modules = sorted(str(path) for path in site.rglob("*.py"))
    words = [sys.executable, "-s", "-m", "compileall", "-qq", "--invalidation-mode=unchecked-hash"]
    compilers = []
    for number in range(COMPILERS):
        compiler = subprocess.Popen([*words, "-i", "-"], stdin=subprocess.PIPE, text=True)
        with compiler.stdin as names:  # all are read before the first is compiled
            names.writelines(f"{module}\n" for module in modules[number::COMPILERS])
        compilers.append(compiler)
    for compiler in compilers:
        compiler.wait()


def start_quietly(site: Path) -> None:
    """Have every start of Python run gpubox_start.py, which lies beside this file."""
    shutil.copyfile(Path(__file__).with_name("gpubox_start.py"), site / "gpubox_start.py")
    (site / "gpubox_start.pth").write_text("import gpubox_start\n")


def settle_times(top: Path, epoch: int) -> None:
    """Set every time stamp to `epoch` (s), so that the same files make the same layer."""
    for folder, folders, files in os.walk(top):
        for name in (*files, *folders):  # a link to a folder is among the folders and not entered
            os.utime(os.path.join(folder, name), (epoch, epoch), follow_symlinks=False)
    os.utime(top, (epoch, epoch))


def split(site: Path) -> None:
    """Move each package of SPLIT, then the whole rest, below LAYERS/NAME with its full path."""
    for name in SPLIT:
        target = LAYERS / name / site.relative_to("/")
        target.mkdir(parents=True)
        if (site / name).exists():
            (site / name).rename(target / name)
    rest = LAYERS / "rest" / VENV.relative_to("/")
    rest.parent.mkdir(parents=True)
    VENV.rename(rest)


def main(layer: str = "") -> int:
    """Slim, add our start, compile, split; the venv is then at LAYERS, ready to be copied layer by layer.

    layer  only compile and settle this folder, as it is: the user's own packages
    """
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "1767225600"))
    if layer:
        for site in Path(layer).glob("opt/venv/lib/python3*/site-packages"):
            compile_all(site)
        settle_times(Path(layer), epoch)
        return 0
    site = next(VENV.glob("lib/python3*/site-packages"))
    remove_unused(site)
    prune_records(site)
    strip_symbols(site)
    start_quietly(site)
    compile_all(site)
    split(site)
    settle_times(LAYERS, epoch)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
