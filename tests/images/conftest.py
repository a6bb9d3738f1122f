"""What the tests of images need: the fake driver, the GPU image where there is room, MNIST."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from bench import mnist as known_mnist
from images import build
from tests.box.box import docker

FAKES = Path(__file__).resolve().parents[1] / "fakes"
GPU_BUILD_ROOM = 30 << 30  # bytes of free disk that a build of the GPU image takes
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


@pytest.fixture(scope="session")
def mnist():
    """The folder with MNIST's four files."""
    return known_mnist.folder()


@pytest.fixture(scope="session")
def gpu_image(engine):
    """The tag of our GPU image; built where it is absent and 30 GB of disk are free."""
    tag = "gpubox/gpu:latest"
    root = docker("info", "--format", "{{.DockerRootDir}}").stdout.strip()
    free = shutil.disk_usage(root if Path(root).is_dir() else "/").free
    if not build.engine_has(tag) and free < GPU_BUILD_ROOM:
        pytest.skip(f"the GPU image is not built: it takes 30 GB of disk, {free >> 30} GB are free")
    command = [str(build.ROOT / "images/build.py"), "gpu", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    return tag


@pytest.fixture
def builds_alone():
    """No other test with this fixture builds meanwhile: a build without the cache replaces what is
    in it, and layers that another one compares would be of before and after."""
    with open(Path(tempfile.gettempdir()) / "gpubox-test-builds.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """A folder with the fake driver's two libraries (see tests/fakes)."""
    folder = tmp_path_factory.mktemp("driver")
    for name, source in (("libcuda.so.1", "libcuda.c"), ("libnvidia-ml.so.1", "libnvidia-ml.c")):
        command = ["cc", "-shared", "-fPIC", "-Wall", "-o", str(folder / name), str(FAKES / source)]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def with_driver(driver):
    """`with_driver(IMAGE, *command, NAME=value…)` runs a container that has the fake driver."""

    def run(image, *command, options=(), **environment):
        words = ["run", "--rm", *options]
        for library in driver.iterdir():
            words += ["--volume", f"{library}:{LIBRARIES}/{library.name}:ro"]
        for name, value in environment.items():
            words += ["--env", f"{name}={value}"]
        return docker(*words, image, *command, check=False)

    return run
