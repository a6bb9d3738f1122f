"""PURE: a run as a SkyPilot task file, for `sky launch` and `sky jobs launch`."""

from __future__ import annotations

import shlex
from typing import Any

from deploy.errors import UsageError
from deploy.plan.export import PORT, Export, packages_note

PACKAGES = "/gpubox/requirements.txt"  # on the cluster
# SkyPilot gives each node the list of all addresses and its rank; TensorFlow wants them as JSON.
TF_CONFIG = (
    'import json, os; hosts = os.environ["SKYPILOT_NODE_IPS"].split(); '
    f'print(json.dumps({{"cluster": {{"worker": [h + ":{PORT}" for h in hosts]}}, '
    '"task": {"type": "worker", "index": int(os.environ["SKYPILOT_NODE_RANK"])}}))'
)


def task(run: Export) -> dict[str, Any]:
    """The task; UsageError where SkyPilot could not know which GPU, or where results would be lost."""
    if run.gpus and not run.gpu_type:
        raise UsageError("export: SkyPilot wants to know which GPU", "--gpus L4, --gpus A100:8")
    if run.workers > 1 and not run.bucket:
        raise UsageError(
            "export: the workers of a run must see the same checkpoints", "--bucket NAME"
        )
    mounts: dict[str, Any] = {f"/input/{run.data}": run.data_path}
    if run.bucket:
        mounts["/output"] = {"name": run.bucket, "mode": "MOUNT"}
    if run.code:
        mounts["/code"] = run.code
    if run.requirements and not run.image:
        mounts[PACKAGES] = run.requirements
    return {
        "name": run.name,
        "workdir": ".",
        **({"num_nodes": run.workers} if run.workers > 1 else {}),
        "resources": _resources(run),
        "file_mounts": mounts,
        "envs": {
            "GPUBOX_INPUT": f"/input/{run.data}",
            "GPUBOX_RUN": run.name,
            "REQUIRE_GPU": str(run.gpus),
        },
        **({} if run.image else {"setup": _setup(run)}),
        "run": _script(run),
    }


def _resources(run: Export) -> dict[str, Any]:
    """The GPU, our idle rule as SkyPilot's own, and the image where the user has one."""
    return {
        **({"accelerators": f"{run.gpu_type}:{run.gpus}"} if run.gpus else {}),
        **({"image_id": f"docker:{run.image}"} if run.image else {}),
        "autostop": {"idle_minutes": run.idle_minutes},
    }


def _setup(run: Export) -> str:
    device = "gpu" if run.gpus else "cpu"
    return (
        "python3 -m venv ~/gpubox-venv\n"
        "~/gpubox-venv/bin/pip install --quiet --require-hashes "
        f"-r images/requirements-{device}.lock\n"
        + (f"~/gpubox-venv/bin/pip install --quiet -r {PACKAGES}\n" if run.requirements else "")
    )


def _script(run: Export) -> str:
    """The same command resumes; what it wrote lies in the bucket, else on the cluster's own disk."""
    output = "/output" if run.bucket else "$HOME/gpubox-output"
    path = "" if run.image else 'export PATH="$HOME/gpubox-venv/bin:$PATH"\n'
    code = "/code:$PWD" if run.code else "$PWD"
    lines = f'{path}export GPUBOX_OUTPUT="{output}/{run.name}" PYTHONPATH="{code}"\n'
    lines += 'mkdir -p "$GPUBOX_OUTPUT"\n'
    if run.workers > 1:
        lines += f'TF_CONFIG="$(python3 -c {shlex.quote(TF_CONFIG)})"\nexport TF_CONFIG\n'
    if run.gpus:
        lines += "python images/gpu_check.py\n"
    return lines + f"exec {shlex.join(run.command)}\n"


def notes(run: Export) -> list[str]:
    """What the task takes for granted, as comments at its top."""
    lines = [f"sky launch -c {run.name} this file (from the clone's folder, which is its workdir)"]
    if run.bucket:
        lines.append(
            "or, on interruptible machines: sky jobs launch --use-spot; it resumes by itself"
        )
    else:
        lines.append(
            "Checkpoints stay on the cluster's disk: `sky stop` keeps it, `sky down` does not"
        )
    return lines + packages_note(run)
