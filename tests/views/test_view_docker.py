"""TensorBoard and a notebook as containers of our own images, by a real engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.box.fixtures import cpu_image, engine  # noqa: F401
from tests.views.test_view import LOOPBACK, fab, listening, soon, tags_of, where_it_lies

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import tensorflow as tf
with tf.summary.create_file_writer("/output/tensorboard").as_default():
    tf.summary.scalar("loss", 0.5, step=1)
"""


def docker(*words):
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def notebook_image(engine):  # noqa: F811
    """The tag of our image with JupyterLab."""
    command = [sys.executable, ROOT / "images/build.py", "notebook", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    return "gpubox/notebook:latest"


@pytest.fixture
def run(tmp_path, monkeypatch, cpu_image):  # noqa: F811
    """A run of the docker runner on `local`, with an event file that TensorFlow wrote."""
    config = tmp_path / "gpubox.toml"
    folders = f'data = "{tmp_path}/data"\ninput = "{tmp_path}/input"'
    config.write_text(f'[boxes.local]\nhost = "local"\n{folders}\n')
    monkeypatch.setenv("GPUBOX_CONFIG", str(config))
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "hello.txt").write_text("staged")
    folder = tmp_path / "data" / "runs" / "20261130-0930-cnn-3f9a"
    (folder / "output").mkdir(parents=True)
    image = docker("image", "inspect", "--format", "{{.Id}}", cpu_image)
    about = {"schema": 1, "id": folder.name, "runner": "docker", "image": image, "created": 1}
    (folder / "run.json").write_text(json.dumps(about))
    mount = f"{folder / 'output'}:/output"
    docker("run", "--rm", "--user=0:0", "-v", mount, image, "python", "-c", TRAIN)
    return folder


def ours():
    return docker("ps", "-q", "--filter", "label=gpubox.view").split()


def test_tensorboard_from_the_runs_image(run):
    before = set(ours())
    with fab("tensorboard") as shown:
        assert tags_of(shown).keys() == {f"{run.name}/output/tensorboard"}
        (container,) = set(ours()) - before
        (published,) = json.loads(
            docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", container)
        )["6006/tcp"]
        assert published["HostIp"] == "127.0.0.1"
        assert listening(int(published["HostPort"])) == LOOPBACK
        shown.process.terminate()  # not even a Ctrl-C
        shown.process.wait(30)
        assert soon(lambda: container not in ours(), 40), "the container outlived the command"


def test_the_notebook_has_input_and_output_and_its_token_is_not_in_docker_inspect(
    run, notebook_image
):
    before = set(ours())
    with fab("notebook", run.name) as shown:
        token = shown.token
        assert shown.get("api/kernels")[0] == 403
        listed = json.loads(shown.get("api/contents", token)[1])["content"]
        assert [each["name"] for each in listed] == ["tensorboard"]
        (container,) = set(ours()) - before
        assert token not in docker("inspect", container)
        assert where_it_lies(token) == []
        assert docker("exec", container, "cat", "/input/hello.txt") == "staged"
        status, _ = shown.get("api/kernels", token, method="POST", data=b"{}")
        assert status == 201
        assert "ipykernel" in docker("top", container)
        shown.process.terminate()
        shown.process.wait(30)
        assert soon(lambda: container not in ours(), 40), "the container outlived the command"


@pytest.mark.sshd
def test_a_box_without_the_notebooks_image_gets_it_by_the_way(sshd, notebook_image):
    """`fab notebook` builds or ships it first, says so, and then the notebook answers."""
    sshd(toml='runner = "docker"\n')
    docker("image", "rm", "--force", notebook_image)
    with fab("notebook", "--host", "box") as shown:
        assert shown.get("api/contents", shown.token)[0] == 200
        assert shown.get("api/contents")[0] == 403
        shown.process.terminate()
        _, said = shown.process.communicate(timeout=60)
    assert f"{notebook_image}: building here (not on the box)" in said
    assert docker("image", "inspect", "--format", "{{.Id}}", notebook_image)
