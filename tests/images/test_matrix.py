"""Other Pythons, another TensorFlow, another base: by build arguments alone."""

import os
import shutil
import subprocess

import pytest

from images import build
from tests.box.box import docker

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}


def uv(*words):
    program = shutil.which("uv") or str(build.ROOT / ".venv/bin/uv")
    return subprocess.run([program, "pip", *words], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "device, machine",  # tensorflow[and-cuda] has no wheels of CUDA for aarch64
    [("cpu", "x86_64"), ("cpu", "aarch64"), ("gpu", "x86_64")],
)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_lock_installs_on_every_python(tmp_path, python, device, machine):
    """A wheel by its hash for each package: what pip does in the build, without the downloads."""
    options = ["--python-version", python, "--python-platform", PLATFORMS[machine]]
    options += ["--only-binary", ":all:", "--require-hashes", "--target", str(tmp_path)]
    lock = build.ROOT / f"images/requirements-{device}.lock"
    done = uv("install", "--dry-run", *options, "-r", str(lock))
    assert done.returncode == 0, done.stderr
    assert "+ tensorflow" in done.stderr and "+ tensorboard==" in done.stderr


def copy_of_the_sources(folder):
    """What a build reads, elsewhere: a lock that is only for this test never lies in the clone."""
    for name in ("images", "workload", "deploy/onbox"):
        shutil.copytree(build.ROOT / name, folder / name)
    for name in ("Dockerfile.cpu", ".dockerignore"):
        shutil.copy(build.ROOT / name, folder)
    return folder


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_another_python_another_tensorflow_and_another_base(engine, tmp_path):
    """Debian 12's Python 3.11 and TensorFlow 2.20: built for real, imported, and a step trained."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed (tests/system-packages)")
    base, tag = "gpubox-test/base:bookworm", "gpubox-test/matrix:latest"
    clone = copy_of_the_sources(tmp_path / "clone")
    lock = clone / "images/requirements-test.lock"
    wanted = tmp_path / "list.in"
    text = (build.ROOT / "images/requirements-cpu.in").read_text()
    wanted.write_text(text.replace("2.21.*", "2.20.*"))
    options = [
        "--universal",
        "--python-version",
        "3.10",
        "--generate-hashes",
        "--no-emit-index-url",
    ]
    done = uv("compile", "--quiet", "--no-emit-find-links", *options, str(wanted), "-o", str(lock))
    assert done.returncode == 0, done.stderr
    try:
        environ = {**os.environ, "GPUBOX_SUITE": "bookworm"}
        command = [clone / "images/base", base]
        subprocess.run(command, check=True, capture_output=True, env=environ)
        command = [clone / "images/build.py", "cpu", "--base", base, "--tag", tag]
        argument = f"LOCK={lock.relative_to(clone)}"
        done = subprocess.run(
            [*command, "--build-arg", argument], capture_output=True, text=True, env=environ
        )
        assert done.returncode == 0, done.stderr[-3000:]
        script = "import sys, tensorflow as tf; print(sys.version_info[:2], tf.__version__, tf.add(1, 2))"
        told = docker("run", "--rm", "--network", "none", tag, "python", "-c", script).stdout
        assert told.startswith("(3, 11) 2.20.") and "tf.Tensor(3" in told
    finally:
        docker("image", "rm", tag, base, check=False)
