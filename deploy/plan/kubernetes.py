"""PURE: a run as a Kubernetes Job, or a JobSet for several workers, that resumes where it was.

Job: batch/v1 with a pod failure policy (Kubernetes 1.31 and later). JobSet:
jobset.x-k8s.io/v1alpha2, a controller that the cluster must have.
"""

from __future__ import annotations

import json
from typing import Any

from deploy.errors import UsageError
from deploy.plan.export import HOPELESS, INTERRUPTED, PORT, Export, packages_note

USER = 1000  # the image's own
RESTARTS = 20  # that were nobody's wish; evictions and interruptions are not counted
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def manifest(run: Export) -> dict[str, Any]:
    """The Job or JobSet; UsageError without an image that a cluster could pull."""
    if not run.image:
        raise UsageError(
            "export: a cluster pulls the image from a registry, and none is named",
            "push the image of `fab build`, then --image REGISTRY/NAME:TAG",
        )
    head = {"name": run.name, "labels": {"app.kubernetes.io/name": run.name}}
    if run.workers == 1:
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": _job(run)}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": head,
        "spec": {
            # when one dies, all begin again together, from the checkpoint
            "failurePolicy": {"maxRestarts": RESTARTS, "rules": [_given_up()]},
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": _job(run)}}],
        },
    }


def _job(run: Export) -> dict[str, Any]:
    several = run.workers > 1
    indexed = {"completionMode": "Indexed", "completions": run.workers, "parallelism": run.workers}
    return {
        **(indexed if several else {}),
        "backoffLimit": 0 if several else RESTARTS,
        "podFailurePolicy": {"rules": _rules(several)},
        "template": {"metadata": {"labels": {"gpubox/run": run.name}}, "spec": _pod(run)},
    }


def _given_up() -> dict[str, Any]:
    """A job that failed by our FailJob rule would fail again."""
    reasons = {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {"name": "hopeless", **reasons, "targetReplicatedJobs": ["worker"]}


def _rules(several: bool) -> list[dict[str, Any]]:
    """An eviction is not the run's fault; bad data or arguments don't get better by trying again.

    Workers can't go on without one of them, so there nothing is ignored: the JobSet restarts all.
    """
    hopeless = {"containerName": "train", "operator": "In", "values": list(HOPELESS)}
    rules: list[dict[str, Any]] = [{"action": "FailJob", "onExitCodes": hopeless}]
    if several:
        return rules
    saved = {"containerName": "train", "operator": "In", "values": [INTERRUPTED]}
    evicted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        *rules,
        {"action": "Ignore", "onExitCodes": saved},
        {"action": "Ignore", "onPodConditions": evicted},
    ]


def _pod(run: Export) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": run.grace,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_stage(run)],
        "containers": [_train(run)],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": run.claim}},
            {"name": "input", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": run.shm_size}},
        ],
    }


def _stage(run: Export) -> dict[str, Any]:
    """The image's own entry point stages the set to the pod's disk, then runs `true`."""
    return {
        "name": "stage",
        "image": run.image,
        "args": ["true"],
        "env": _variables(
            {
                "GPUBOX_DATASET": run.data,
                "GPUBOX_DATA": "/data",
                "GPUBOX_INPUT": "/input",
                "REQUIRE_GPU": "0",
            }
        ),
        "securityContext": _locked(),
        "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "input", "mountPath": "/input"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _train(run: Export) -> dict[str, Any]:
    settings = {
        "GPUBOX_INPUT": f"/input/{run.data}",
        "GPUBOX_OUTPUT": "/output",
        "GPUBOX_RUN": run.name,
        "REQUIRE_GPU": str(run.gpus),
        "CUDA_CACHE_PATH": "/output/.cuda-cache",
    }
    train: dict[str, Any] = {
        "name": "train",
        "image": run.image,
        "args": list(run.command),
        "env": [*_variables(settings), *(_worker_variables(run) if run.workers > 1 else [])],
        "securityContext": _locked(),
        "volumeMounts": [
            {"name": "input", "mountPath": "/input", "readOnly": True},
            {"name": "data", "mountPath": "/output", "subPath": f"runs/{run.name}"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if run.gpus:
        train["resources"] = {"limits": {"nvidia.com/gpu": run.gpus}}
    if run.workers > 1:
        train["ports"] = [{"name": "grpc", "containerPort": PORT, "protocol": "TCP"}]
    return train


def _worker_variables(run: Export) -> list[dict[str, Any]]:
    """TF_CONFIG; Kubernetes itself puts the pod's index into it ($(…) of a variable before it)."""
    hosts = [f"{run.name}-worker-0-{i}.{run.name}:{PORT}" for i in range(run.workers)]
    cluster = json.dumps({"worker": hosts})
    return [
        {"name": "WORKER_INDEX", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        {
            "name": "TF_CONFIG",
            "value": f'{{"cluster": {cluster}, "task": {{"type": "worker", "index": $(WORKER_INDEX)}}}}',
        },
    ]


def _variables(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _locked() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def notes(run: Export) -> list[str]:
    """What the manifest takes for granted, as comments at its top."""
    mode = "ReadWriteMany" if run.workers > 1 else "ReadWriteOnce"
    lines = [
        f"kubectl apply -f this file; kubectl logs -f -l gpubox/run={run.name} -c train",
        f"Needs: the claim {run.claim} ({mode}) with the data set in its folder {run.data}/ (plain",
        f"files, or /data of a box); results lie in its folder runs/{run.name}/. The same manifest,",
        "applied again after a delete, goes on from the newest checkpoint.",
    ]
    if run.workers > 1:
        lines.append(
            "Needs: the JobSet controller (jobset.x-k8s.io). gRPC between workers is not encrypted."
        )
    if run.code:
        lines.append(f"Your own program ({run.code}) must be in the image, at /code.")
    return lines + packages_note(run)
