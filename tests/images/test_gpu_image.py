"""The GPU image sees a GPU where there is one, and says in one line why where there is none."""

import json
from pathlib import Path

import pytest

from images import build
from tests.box.box import docker
from tests.images.fatbin import serves

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]
LIMIT = 5_300_000_000  # bytes; the target of bench/images as well
LIST = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"


def test_it_is_as_small_as_it_can_be(gpu_image):
    assert int(docker("image", "inspect", "--format", "{{.Size}}", gpu_image).stdout) <= LIMIT


def test_tensorflow_lists_the_gpu(gpu_image, with_driver):
    """The stock install says "Cannot dlopen some GPU libraries" here and goes on with the CPU."""
    done = with_driver(gpu_image, "gpu-check", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    assert report["tensorflow_gpus"] == 1 and report["gpus"][0]["capability"] == [6, 1]


@pytest.mark.parametrize(
    "command",
    [["env", "-i", "/opt/venv/bin/python", "-c", LIST], ["python", "-c", LIST]],
    ids=["no environment", "LD_LIBRARY_PATH"],
)
def test_it_needs_no_environment_for_that(gpu_image, with_driver, command):
    done = with_driver(
        gpu_image,
        *command,
        options=["--entrypoint", ""],
        LD_LIBRARY_PATH="/nowhere",
    )
    assert done.stdout.strip() == "1", done.stderr


@pytest.fixture(scope="module")
def architectures(gpu_image):
    """{library: architectures} of the CUDA libraries with code for cards that TensorFlow opens."""
    script = Path(__file__).resolve().parent / "fatbin.py"
    libraries = "cublas/lib/libcublas.so.12 cublas/lib/libcublasLt.so.12 cufft/lib/libcufft.so.11"
    libraries += " cusolver/lib/libcusolver.so.11 cusparse/lib/libcusparse.so.12"
    libraries += " nccl/lib/libnccl.so.2"
    cudnn = "adv cnn engines_precompiled engines_runtime_compiled ops"
    libraries += "".join(f" cudnn/lib/libcudnn_{each}.so.9" for each in cudnn.split())
    command = f"cd /opt/venv/lib/python3*/site-packages/nvidia && python /fatbin.py {libraries}"
    options = ["--rm", "--entrypoint", "", "--volume", f"{script}:/fatbin.py:ro"]
    done = docker("run", *options, gpu_image, "sh", "-c", command)
    return json.loads(done.stdout)


FAULTS = {
    "no device": ({"FAKE_GPUS": 0}, "no GPU"),
    "driver too old": ({"FAKE_DRIVER": 11040}, "525.60.13"),
    "driver too old for the card": ({"FAKE_CAPABILITY": 120}, "570.26"),
    "card too old": ({"FAKE_CAPABILITY": 52}, "compute capability 5.2"),
    "driver broken": ({"FAKE_CUINIT": 999}, "Xid"),
    "versions differ": ({"FAKE_CUINIT": 803}, "reboot"),
    "hidden": ({"CUDA_VISIBLE_DEVICES": -1}, "CUDA_VISIBLE_DEVICES=-1"),
    "too few": ({"REQUIRE_GPU": 2}, "2 GPUs are required"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_one_line_with_its_remedy_and_nothing_trains(gpu_image, with_driver, name):
    environment, words = FAULTS[name]
    done = with_driver(gpu_image, "echo", "trained", **environment)
    assert done.returncode == 69 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert words in line


def test_without_a_driver_nothing_trains(gpu_image):
    done = docker("run", "--rm", gpu_image, "echo", "trained", check=False)
    assert done.returncode == 69 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "no driver library" in line and "toolkit" in line


def test_a_stub_of_the_driver_in_the_way_is_named(gpu_image, with_driver):
    done = with_driver(gpu_image, "gpu-check", FAKE_CUINIT=34)
    assert done.returncode == 69 and "LD_LIBRARY_PATH" in done.stderr


def test_what_cuda_visible_devices_means_is_said(gpu_image, with_driver):
    done = with_driver(gpu_image, "gpu-check", CUDA_VISIBLE_DEVICES=0)
    assert done.returncode == 0 and "not the CPU" in done.stderr


def test_a_missing_cuda_library_is_named(gpu_image, with_driver):
    """As where somebody's own layer breaks the loader's cache."""
    done = with_driver(
        gpu_image,
        "-c",
        "rm /etc/ld.so.conf.d/nvidia-wheels.conf; ldconfig; exec /opt/gpubox/entrypoint gpu-check",
        options=["--user", "0:0", "--entrypoint", "sh"],
    )
    assert done.returncode == 69
    assert "libcudnn.so.9" in done.stderr and "TensorFlow sees none" in done.stderr


@pytest.mark.parametrize("card", [61, 70, 86, 90, 120], ids=lambda each: f"sm_{each}")
def test_every_cuda_library_has_code_for_cards_old_and_new(architectures, card):
    """sm_61: GTX 1080 Ti, which a newer cuDNN 9 has left; sm_120: RTX 5090."""
    lacking = {name: found for name, found in architectures.items() if not serves(found, card)}
    assert lacking == {}


def test_compiled_code_is_kept_where_a_volume_can_be_mounted(gpu_image):
    script = 'touch "$(dirname "$CUDA_CACHE_PATH")"/file && echo "$CUDA_CACHE_MAXSIZE"'
    options = ["--rm", "--user", "4321:4321", "--volume", "/cache", "--env", "REQUIRE_GPU="]
    done = docker("run", *options, gpu_image, "sh", "-c", script)
    assert int(done.stdout) >= 4 << 30


def test_nvidias_licences_are_kept(gpu_image):
    script = "cd /opt/venv/lib/python3*/site-packages && ls -d nvidia_*.dist-info "
    script += " && find nvidia_*.dist-info -iname '*licen*'"
    options = ["--rm", "--env", "REQUIRE_GPU="]
    lines = docker("run", *options, gpu_image, "sh", "-c", script).stdout.split()
    packages = [each for each in lines if each.endswith(".dist-info")]
    licensed = {each.split("/")[0] for each in lines if "/" in each}
    assert len(packages) >= 11 and licensed == set(packages)


@pytest.mark.box
def test_compose_up_gpu_train_finds_the_gpu_by_the_toolkits_way(gpu_image, driver, boxes, tmp_path):
    """The engine's real path to a GPU, with a fake toolkit and driver on the box."""
    hook = build.ROOT / "tests/fakes/nvidia-container-runtime-hook"
    more = ["--volume", f"{hook}:/usr/bin/nvidia-container-runtime-hook:ro"]
    more += ["--volume", f"{driver}:/opt/fake:ro", "--volume", f"{build.ROOT}:/clone:ro"]
    box = boxes.start("engine", more=more)
    box.load(gpu_image)
    folders = "GPUBOX_INPUT=/input GPUBOX_OUTPUT=/data"
    up = "docker compose -f /clone/compose.yaml up --no-build --exit-code-from gpu-train gpu-train"
    done = box.ssh(f"{folders} GPUBOX_ARGS=check {up}", timeout=500)
    assert "GPU found: Fake GTX 1080 Ti" in done.stdout + done.stderr, done.stderr
    # ...and the program started: it finds no data set in the empty folder, and says so
    assert done.returncode not in (0, 69)
    report = box.ssh(f"docker run --rm --gpus all {gpu_image} gpu-check")
    assert report.returncode == 0 and "TensorFlow sees 1" in report.stderr
