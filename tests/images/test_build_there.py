"""`fab build` on a box that reaches no registry: the context travels, the image is built and trains."""

import json
import os
import re
import subprocess

import pytest

from deploy.effects import engine
from deploy.plan.deploy import IMAGES
from deploy.verbs import bring, shipping
from images import build
from tests.box.box import docker

pytestmark = [
    pytest.mark.engine,
    pytest.mark.box,
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(1800),
]
LAYERS = ["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}"]
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


def test_a_changed_workload_is_added_on_the_box_and_no_layer_travels(
    boxes, cpu_image, monkeypatch, tmp_path
):
    box = boxes.start("engine")
    desk, tag = box.desk(), IMAGES["cpu"]
    copy = tmp_path / "clone"
    copy.mkdir()
    for name in ("images", "workload", "deploy", "Dockerfile.cpu", ".dockerignore"):
        subprocess.run(["cp", "-r", build.ROOT / name, copy / name], check=True)
    monkeypatch.setattr(engine, "root", lambda: copy)
    sent = []
    frames = shipping.frames_from_here
    monkeypatch.setattr(
        shipping, "frames_from_here", lambda *words: sent.append(1) or frames(*words)
    )
    with desk.open(box.name) as agent:
        first = bring.ship_ours(desk, agent, "cpu", tag, "a test")
        (copy / "workload" / "changed.py").write_text("print('changed')\n")
        second = bring.ship_ours(desk, agent, "cpu", tag, "a test")
    assert len(sent) == 1 and first != second
    layers = [json.loads(box.run(*LAYERS, image).stdout) for image in (first, second)]
    assert layers[0][:-1] == layers[1][:-1]
    run = ["docker", "run", "--rm", second, "python", "-m"]
    assert box.run(*run, "workload.changed").stdout == "changed\n"
    assert engine.image_here("gpubox/cpu:env")["id"] == id_on(box, "gpubox/cpu:env")


def id_on(box, tag):
    return box.run("docker", "image", "inspect", "--format", "{{.Id}}", tag).stdout.strip()


def test_where_the_build_on_the_box_fails_the_image_is_shipped(boxes, cpu_image, capsys):
    """The box's package index does not answer: that is said, and the image comes from here."""
    box = boxes.start("engine")
    conf = "[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\n"
    box.run("sh", "-c", "mkdir -p /root/.config/pip; cat >/root/.config/pip/pip.conf", input=conf)
    desk = box.desk()
    tag = IMAGES["cpu"]
    with desk.open(box.name) as agent:
        image = bring.build_or_ship(desk, agent, "cpu", tag, "a test")
    said = " ".join(capsys.readouterr().err.split())
    assert "the build failed" in said and "so it is built here and shipped" in said
    assert image == id_on(box, tag)
    # (what TensorFlow says on stderr depends on the processor)
    version = ["python", "-c", "import tensorflow; print(tensorflow.__version__)"]
    lock = (engine.root() / "images" / "requirements-cpu.lock").read_text()
    pinned = re.search(r"^tensorflow==(\S+)", lock, re.MULTILINE)
    assert pinned and box.run("docker", "run", "--rm", tag, *version).stdout.strip() == pinned[1]


def test_the_build_says_one_line_where_nothing_can_be_built(boxes):
    box = boxes.start("process")
    done = fab("build", "--host", box.name)
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr, done.stderr
