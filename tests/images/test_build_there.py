"""`fab build` on a box that reaches no registry: the context travels, the image is built and trains."""

import json
import os
import subprocess

import pytest

from deploy.effects import engine
from images import build
from tests.box.box import docker

pytestmark = [
    pytest.mark.engine,
    pytest.mark.box,
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(1800),
]
TRAIN = "docker run --rm -v /input:/input:ro gpubox/cpu python -m workload bp --steps 20"


def fab(*words):
    return subprocess.run(
        [".venv/bin/fab", *words], capture_output=True, text=True, cwd=engine.root()
    )


def test_an_image_built_on_the_box_trains_there(boxes, cpu_image, mnist):
    ca = build.authority(dict(os.environ))
    more = ["--volume", f"{ca}:{build.SYSTEM_CA}:ro"] if ca else []
    box = boxes.start("engine", more=more)
    planned = fab("build", "--host", box.name, "--dry-run")
    assert planned.returncode == 0 and f"not on {box.name}" in planned.stdout, planned.stderr
    done = fab("build", "--host", box.name, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    [result] = json.loads(done.stdout)["results"]
    there = box.run("docker", "image", "inspect", "--format", "{{.Id}}", "gpubox/cpu:latest")
    assert result["action"] == "build" and result["id"] == there.stdout.strip()
    again = fab("build", "--host", box.name, "--json")
    assert json.loads(again.stdout)["results"][0]["action"] == "keep", again.stderr
    docker("cp", f"{mnist}/.", f"{box.container}:/input")
    trained = box.ssh(TRAIN)
    assert trained.returncode == 0 and "20/20" in trained.stdout, trained.stderr[-2000:]


def test_the_build_says_one_line_where_nothing_can_be_built(boxes):
    box = boxes.start("process")
    done = fab("build", "--host", box.name)
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr, done.stderr
