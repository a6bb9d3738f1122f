"""The base image of Debian packages: the same bytes from the same packages."""

import shutil
import subprocess

import pytest

from images import build
from tests.box.box import docker

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_two_makings_are_one_image(engine):
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed (tests/system-packages)")
    tags = ["gpubox-test/base:one", "gpubox-test/base:two"]
    try:
        for tag in tags:
            subprocess.run([build.ROOT / "images/base", tag], check=True, capture_output=True)
        ids = {docker("image", "inspect", "--format", "{{.Id}}", tag).stdout for tag in tags}
        assert len(ids) == 1
        script = "import sys; print(*sys.version_info[:2])"
        major, minor = docker("run", "--rm", tags[0], "python3", "-c", script).stdout.split()
        assert major == "3" and 10 <= int(minor) <= 13
    finally:
        docker("image", "rm", *tags, check=False)
