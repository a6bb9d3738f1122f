"""`docker compose up` by hand: cpu-train trains, gpu-train never trains on the CPU."""

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from images import build
from tests.box.box import docker

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]
SERVICES = ("cpu-train", "gpu-train", "tensorboard", "notebook")


@pytest.fixture
def compose(tmp_path):
    """`compose(*words, NAME=value…)` in this clone, as a project of this test's own."""
    project = f"gpubox-test-{os.getpid()}"
    (tmp_path / "output").mkdir()
    base = ["docker", "compose", "--project-name", project, "--file", build.ROOT / "compose.yaml"]
    usual = {"GPUBOX_INPUT": str(tmp_path), "GPUBOX_OUTPUT": str(tmp_path / "output")}

    def run(*words, **environment):
        return subprocess.run(
            [*base, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **usual, **environment},
        )

    run.output, run.project = tmp_path / "output", project
    yield run
    # of every service: else the volume of one that is not asked for by default stays
    run("--profile", "*", "down", "--volumes", "--timeout", "5")


@pytest.mark.tensorflow
def test_cpu_train_trains_on_mnist_and_ends_with_its_exit_code(compose, cpu_image, mnist):
    up = ["up", "--no-build", "--exit-code-from", "cpu-train", "cpu-train"]
    done = compose(*up, GPUBOX_INPUT=str(mnist), GPUBOX_ARGS="bp --steps 100")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((compose.output / "result.json").read_text())
    assert result["step"] == 100
    assert (compose.output / "checkpoints" / "step_00000100" / "SHA256SUMS").exists()
    owner = (compose.output / "result.json").stat().st_uid
    assert owner == compose.output.stat().st_uid
    failed = compose(*up, GPUBOX_INPUT=str(compose.output), GPUBOX_ARGS="bp --no-such-flag")
    assert failed.returncode == 2, failed.stdout


def test_a_missing_folder_is_an_error_and_is_not_made(compose, cpu_image, tmp_path):
    absent = tmp_path / "absent"
    done = compose("up", "--no-build", "cpu-train", GPUBOX_OUTPUT=str(absent))
    assert done.returncode != 0 and str(absent) in done.stderr
    assert not absent.exists()


def test_gpu_train_without_the_toolkit_ends_before_anything_runs(compose, cpu_image):
    if "nvidia" in docker("info", "--format", "{{.Runtimes}}").stdout:
        pytest.skip("this engine has a GPU runtime")
    # any image serves: the engine refuses before it starts a container
    done = compose("up", "--no-build", "gpu-train", GPUBOX_IMAGE_GPU=cpu_image)
    assert done.returncode == 1
    assert 'could not select device driver "nvidia"' in done.stderr
    assert list(compose.output.iterdir()) == []


def test_a_container_can_do_little(compose, cpu_image):
    done = compose("create", "--no-build", "cpu-train")
    assert done.returncode == 0, done.stderr
    container = compose("ps", "--all", "--quiet", "cpu-train").stdout.strip()
    [told] = json.loads(docker("inspect", container).stdout)
    host = told["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"]
    added = {each.removeprefix("CAP_") for each in host["CapAdd"]}
    assert added == {"SETGID", "SETPCAP", "SETUID"}
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["RestartPolicy"]["Name"] == "no" and host["Init"]
    assert told["Config"]["Healthcheck"]["Test"][-1] == "healthcheck"


def test_every_service_and_its_ports_on_loopback_alone(compose):
    done = compose("--profile", "*", "config", "--format", "json")
    services = json.loads(done.stdout)["services"]
    assert sorted(services) == sorted(SERVICES)
    ports = [port for each in services.values() for port in each.get("ports", [])]
    assert len(ports) == 2 and {port["host_ip"] for port in ports} == {"127.0.0.1"}
    cards = services["gpu-train"]["deploy"]["resources"]["reservations"]["devices"]
    assert [each["driver"] for each in cards] == ["nvidia"]
    assert services["gpu-train"]["environment"]["REQUIRE_GPU"] == "1"


def test_the_heartbeat_is_what_health_means(cpu_image, tmp_path):
    check = ["--user", "0:0", "--volume", f"{tmp_path}:/output:ro", cpu_image, "healthcheck"]
    assert docker("run", "--rm", *check, check=False).returncode == 1
    beat = tmp_path / "progress.json"
    beat.write_text("{}")
    assert docker("run", "--rm", *check, check=False).returncode == 0
    os.utime(beat, (1, 1))
    assert docker("run", "--rm", *check, check=False).returncode == 1


def test_tensorboard_shows_what_lies_in_the_output(compose, cpu_image):
    """Its page answers inside the container (the port of this machine may be somebody else's)."""
    from tests.box.box import free_port

    port = str(free_port())
    done = compose("up", "--no-build", "--detach", "tensorboard", GPUBOX_TENSORBOARD_PORT=port)
    assert done.returncode == 0, done.stderr
    script = (
        "import sys, time, urllib.request as u\n"
        "for _ in range(300):\n"
        "    try:\n"
        "        print(u.urlopen(sys.argv[1]).status); break\n"
        "    except OSError: time.sleep(0.2)\n"
    )
    address = f"http://127.0.0.1:{port}/data/environment"
    answer = subprocess.run(["python3", "-c", script, address], capture_output=True, text=True)
    assert answer.stdout.strip() == "200", compose("logs").stdout


@pytest.mark.tensorflow
def test_the_notebook_answers_its_token_alone_and_on_loopback_alone(compose, cpu_image):
    """`docker compose up notebook` by hand: builds the image, prints its address with the token."""
    command = [build.ROOT / "images/build.py", "notebook", "--quiet"]
    subprocess.run(command, check=True, capture_output=True)  # as compose would, with its base
    from tests.box.box import free_port

    port = free_port()
    done = compose("up", "--no-build", "--detach", "notebook", GPUBOX_NOTEBOOK_PORT=str(port))
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 120
    while not (found := re.search(r"http://127\.0\.0\.1:8888/lab\?token=(\w+)", logs(compose))):
        assert time.monotonic() < deadline, logs(compose)
        time.sleep(0.5)
    assert asked(port, "") == 403 and asked(port, "wrong") == 403
    assert asked(port, found[1]) == 200
    addresses = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [each for each in addresses if each.endswith(f":{port:04X}")]
    assert here and {each.split(":")[0] for each in here} == {"0100007F"}
    kernel = compose("exec", "notebook", "python", "-c", "import tensorflow, jupyterlab")
    assert kernel.returncode == 0, kernel.stderr


def logs(compose):
    done = compose("logs", "--no-log-prefix", "notebook")
    return done.stdout + done.stderr


def asked(port, token):
    """The status of the notebook's own list of files, asked with a token."""
    headers = {"Authorization": f"token {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/contents", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as no:
        return no.code


def test_packages_of_ones_own_by_hand(compose, tmp_path, cpu_image):
    """A folder with a requirements.txt, by one variable."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "requirements.txt").write_text("toolz==1.0.0\n")
    environ = {"GPUBOX_REQUIREMENTS": str(folder), "GPUBOX_IMAGE_CPU": "gpubox-test/hand:latest"}
    ca = build.authority(dict(os.environ))
    environ |= {"GPUBOX_CA": ca} if ca else {}
    try:
        done = compose("build", "cpu-train", **environ)
        assert done.returncode == 0, done.stderr[-2000:]
        code = "import toolz; print(toolz.__version__)"
        done = docker("run", "--rm", "gpubox-test/hand:latest", "python", "-c", code)
        assert done.stdout.strip() == "1.0.0"
    finally:
        docker("image", "rm", "gpubox-test/hand:latest", check=False)
