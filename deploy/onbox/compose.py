"""PURE: compose.run.json, the generated file over compose.yaml that makes a service one run."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .workers import tf_config


class Mounts(NamedTuple):
    """Folders on the box; `code` and `env` are "" where the run has none."""

    data: str
    output: str
    scratch: str
    cache: str = ""
    code: str = ""
    env: str = ""


# Reads KEY=VALUE lines from a mounted file, so that no value stands in `docker inspect`.
WITH_ENV = (
    'while IFS= read -r line || [ -n "$line" ]; do case $line in \\#*) ;; *=*) export "$line" ;;'
    ' esac; done </run/gpubox-env; exec "$@"'
)
OVERRIDE = "!override "  # compose: take this list instead of adding it to the one below it


def project(run_id: str) -> str:
    return f"gpubox-{run_id}"


def container_name(run_id: str, service: str) -> str:
    """The name that compose gives the one container of a service."""
    return f"{project(run_id)}-{service}-1"


def compose_run(
    run: dict[str, Any], gpus: list[str], mounts: Mounts, user: str, entrypoint: list[str]
) -> str:
    """The text of compose.run.json: image id, arguments, GPUs by UUID, mounts, user, labels.

    JSON but for `!override` before three lists, which compose would add to its own otherwise.
    `entrypoint` is the image's own, needed only where variables come from a file.
    """
    service: dict[str, Any] = {
        "image": run["image"],
        "pull_policy": "never",
        "restart": "no",
        "command": doubled(run["command"]),
        "user": user,
        "labels": {"gpubox.run": run["id"], "gpubox.identity": run["identity"]},
        "environment": _environment(run, mounts),
        "volumes": OVERRIDE + json.dumps(_volumes(mounts)),
        "shm_size": run["shm_size"],
        "stop_grace_period": f"{int(run['stop_grace'])}s",
        "logging": {"driver": "json-file", "options": {"max-size": "16m", "max-file": "4"}},
    }
    if run["device"] == "gpu":
        cards = [{"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}]
        devices = {"reservations": {"devices": OVERRIDE + json.dumps(cards)}}
        service["deploy"] = {"resources": devices}
    if run.get("worker"):  # its peers know it by the box's own address
        service["network_mode"] = "host"
    if run.get("memory"):
        service["mem_limit"] = run["memory"]
    if mounts.code:
        service["working_dir"] = "/code"
    if mounts.env:
        service["entrypoint"] = ["/bin/sh", "-c", *doubled([WITH_ENV, "sh", *entrypoint])]
    return with_tags({"services": {run["service"]: service}})


def doubled(words: list[str]) -> list[str]:
    """`$` as compose wants it where no variable is meant."""
    return [word.replace("$", "$$") for word in words]


def _environment(run: dict[str, Any], mounts: Mounts) -> dict[str, str]:
    variables = {
        "GPUBOX_RUN": run["id"],
        "GPUBOX_INPUT": "/input",
        "GPUBOX_OUTPUT": "/output",
        "GPUBOX_SCRATCH": "/scratch",
        "GPUBOX_DATASET": "",
        "HOME": "/tmp",
        "PYTHONUNBUFFERED": "1",
    }
    if run["device"] == "gpu":
        variables["REQUIRE_GPU"] = str(run["gpu_count"])
    if run.get("worker"):
        variables["TF_CONFIG"] = tf_config(run["worker"])
    if mounts.code:
        variables["PYTHONPATH"] = "/code:/opt/gpubox"
    return variables


def _volumes(mounts: Mounts) -> list[dict[str, Any]]:
    pairs = [(mounts.data, "/input", True), (mounts.output, "/output", False)]
    pairs += [(mounts.scratch, "/scratch", False), (mounts.cache, "/cache", False)]
    pairs += [(mounts.code, "/code", True)] if mounts.code else []
    pairs += [(mounts.env, "/run/gpubox-env", True)] if mounts.env else []
    return [
        {
            "type": "bind",
            "source": source.replace("$", "$$"),
            "target": target,
            "read_only": read_only,
            "bind": {"create_host_path": False},
        }
        for source, target, read_only in pairs
        if source
    ]


def with_tags(document: dict[str, Any]) -> str:
    """Strings that begin with the tag are lists in JSON already: take their quotes away."""
    text = json.dumps(document, indent=1, sort_keys=True)
    lines = []
    for line in text.splitlines():
        key, found, value = line.partition(f': "{OVERRIDE}')
        if found:
            comma = "," if value.endswith(",") else ""
            inner = json.loads('"' + value.rstrip(","))
            line = f"{key}: {OVERRIDE}{inner}{comma}"
        lines.append(line)
    return "\n".join(lines) + "\n"
