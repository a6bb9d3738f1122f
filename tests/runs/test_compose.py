"""compose.run.json over compose.yaml: exactly our image, GPUs, mounts and words come out."""

import json
import subprocess

import pytest

from deploy.effects.settings import root
from deploy.onbox.compose import Mounts, compose_run, container_name, project

RUN = {
    "id": "20261130-0930-cnn-3f9a",
    "identity": "af5a@box",
    "image": "sha256:" + "0" * 64,
    "command": ["python", "-m", "workload", "cnn", "--name", "a $HOME ${x} 'b' \"c\" \\d"],
    "service": "gpu-train",
    "device": "gpu",
    "gpu_count": 2,
    "shm_size": "1gb",
    "stop_grace": 90.0,
    "memory": "12g",
}
GPUS = ["GPU-1", "GPU-2"]
MOUNTS = Mounts("/in put/$x", "/data/runs/r/output", "/input/scratch", "/data/cache")


def merged(tmp_path, run, gpus, mounts, entrypoint=()):
    """What compose makes of both files."""
    text = compose_run(run, gpus, mounts, "1000:1000", list(entrypoint))
    (tmp_path / "compose.yaml").write_text((root() / "compose.yaml").read_text())
    (tmp_path / "compose.run.json").write_text(text)
    files = ["-f", str(tmp_path / "compose.yaml"), "-f", str(tmp_path / "compose.run.json")]
    words = ["docker", "compose", *files, "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"][run["service"]]


@pytest.mark.engine
def test_exactly_the_leased_cards_and_nothing_that_compose_yaml_had(tmp_path):
    service = merged(tmp_path, RUN, GPUS, MOUNTS)
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices["device_ids"] == GPUS and "count" not in devices
    assert service["environment"]["REQUIRE_GPU"] == "2"
    targets = {each["target"]: each for each in service["volumes"]}
    assert set(targets) == {"/input", "/output", "/scratch", "/cache"}
    assert targets["/input"]["source"].replace("$$", "$") == "/in put/$x"
    assert targets["/input"]["read_only"] and not targets["/output"].get("read_only")
    assert not any(each["bind"].get("create_host_path") for each in targets.values())


@pytest.mark.engine
def test_the_words_reach_the_program_as_they_are(tmp_path):
    service = merged(tmp_path, RUN, GPUS, MOUNTS)
    assert [word.replace("$$", "$") for word in service["command"]] == RUN["command"]
    assert service["image"] == RUN["image"] and service["pull_policy"] == "never"
    assert service["restart"] == "no" and service["user"] == "1000:1000"
    assert service["stop_grace_period"] == "1m30s" and service["shm_size"] == str(1 << 30)
    assert service["labels"]["gpubox.run"] == RUN["id"]
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True


@pytest.mark.engine
def test_a_cpu_run_gets_no_device(tmp_path):
    service = merged(tmp_path, {**RUN, "device": "cpu", "service": "cpu-train"}, [], MOUNTS)
    assert "devices" not in service.get("deploy", {}).get("resources", {}).get("reservations", {})
    assert "REQUIRE_GPU" not in service["environment"]


@pytest.mark.engine
def test_variables_come_from_a_mounted_file_and_the_entry_point_stays(tmp_path):
    mounts = MOUNTS._replace(env="/data/runs/r/env", code="/data/runs/r/code/user")
    service = merged(tmp_path, RUN, GPUS, mounts, ["/opt/gpubox/entrypoint"])
    assert service["entrypoint"][-1] == "/opt/gpubox/entrypoint"
    assert service["working_dir"] == "/code"
    sources = {each["target"]: each["source"] for each in service["volumes"]}
    assert sources["/run/gpubox-env"] == "/data/runs/r/env"


def test_names_are_those_that_compose_gives():
    assert project(RUN["id"]) == "gpubox-20261130-0930-cnn-3f9a"
    assert container_name(RUN["id"], "gpu-train") == "gpubox-20261130-0930-cnn-3f9a-gpu-train-1"
