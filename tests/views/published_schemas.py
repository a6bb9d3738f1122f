"""Runs in a venv of its own, which has the clusters' own packages: checks documents against them.

stdin: JSON lines {"kind": …, "document": …}; stdout: one JSON line each, "" or what is wrong.
kinds: kubernetes (kubernetes-validate's JSON schemas, strict), jobset (the API's generated models:
what a model does not know is lost on the way through it), skypilot (SkyPilot itself makes a task
and its resources of it), yaml ({"text", "value"}: the text, read by PyYAML, is the value).
"""

import copy
import json
import sys


def kubernetes(document):
    import kubernetes_validate

    kubernetes_validate.validate(document, "1.37", strict=True)


def jobset(document):
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    kept = JobsetV1alpha2JobSet.from_dict(document).to_dict()
    assert kept == document, f"lost or changed: {json.dumps(kept)}"
    for job in document["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}} | {
            "spec": job["template"]["spec"]
        }
        kubernetes(job)


def skypilot(document):
    import sky
    from sky.utils import common_utils, schemas

    common_utils.validate_schema(document, schemas.get_task_schema(), "task: ")
    common_utils.validate_schema(document["resources"], schemas.get_resources_schema(), "res: ")
    task = sky.Task.from_yaml_config(copy.deepcopy(document))  # it takes the keys out
    assert task.num_nodes == document.get("num_nodes", 1)


def yaml(document):
    import yaml as pyyaml

    found = pyyaml.safe_load(document["text"])
    assert found == document["value"], f"{document['text']!r} is {found!r}"


for line in sys.stdin:
    case = json.loads(line)
    try:
        globals()[case["kind"]](case["document"])
        said = ""
    except Exception as no:
        said = f"{type(no).__name__}: {no}"
    print(json.dumps(said), flush=True)
