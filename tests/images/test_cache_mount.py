"""What a GPU's driver compiles is kept on the disk that outlives a stop: by run and by hand."""

import json
import subprocess

import pytest

from deploy.onbox.compose import Mounts, compose_run
from images import build

RUN = {
    **{"id": "r", "image": "sha256:1", "command": ["true"], "identity": "i", "shm_size": "1g"},
    **{"stop_grace": 10, "device": "gpu", "gpu_count": 1, "service": "gpu-train"},
}


def test_a_run_on_gpus_has_the_cache_of_its_box_and_can_write_it():
    mounts = Mounts("/input/x", "/data/runs/r/output", "/scratch/r", cache="/data/runs/.cache")
    text = compose_run(RUN, ["GPU-1"], mounts, "1:1", [])
    [line] = [each for each in text.splitlines() if '"volumes"' in each]
    volumes = json.loads(line[line.index("[") :].rstrip(","))
    [cache] = [each for each in volumes if each["target"] == "/cache"]
    assert cache["source"] == "/data/runs/.cache" and not cache["read_only"]


def test_a_run_whose_box_gives_no_folder_for_it_has_none():
    text = compose_run(RUN, [], Mounts("/input/x", "/o", "/s"), "1:1", [])
    assert "/cache" not in text


@pytest.mark.engine
def test_by_hand_it_is_a_volume_of_its_own(engine):
    command = ["docker", "compose", "--file", build.ROOT / "compose.yaml", "--profile", "gpu"]
    done = subprocess.run([*command, "config", "--format", "json"], capture_output=True, text=True)
    volumes = json.loads(done.stdout)["services"]["gpu-train"]["volumes"]
    [cache] = [each for each in volumes if each["target"] == "/cache"]
    assert cache["type"] == "volume"
    path = "CUDA_CACHE_PATH=/cache/"
    assert path in (build.ROOT / "Dockerfile.gpu").read_text()
