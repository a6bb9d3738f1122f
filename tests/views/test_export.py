"""`fab export`: the documents against the clusters' published schemas, and the scripts by running them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.errors import UsageError
from deploy.plan import kubernetes, skypilot
from deploy.plan.config import read_config
from deploy.plan.export import HOPELESS, INTERRUPTED, export_of, gpus_of, label, memory_quantity
from deploy.plan.yaml_text import yaml_text
from tests.views.venvs import venv_with

ROOT = Path(__file__).resolve().parents[2]
FAB = Path(sys.executable).parent / "fab"
PACKAGES = (
    "skypilot==0.14.1",
    "kubernetes-validate==1.37.0",
    "kubeflow-trainer-api==2.3.0",
    "pyyaml",
)
CONFIG = read_config({"data": {"mnist": {"path": "~/mnist"}}, "run": {"data": "mnist"}})
IMAGE = "registry.example/me/gpubox:1"


@pytest.fixture(scope="module")
def published():
    """check(kind, document) → "" or what the published schema says against it."""
    venv = venv_with("schemas", *PACKAGES)
    checker = subprocess.Popen(
        [venv / "bin/python", Path(__file__).with_name("published_schemas.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )

    def check(kind, document):
        checker.stdin.write(json.dumps({"kind": kind, "document": document}) + "\n")
        checker.stdin.flush()
        return json.loads(checker.stdout.readline())

    yield check
    checker.stdin.close()
    assert checker.wait(30) == 0


def run(**asked):
    return export_of(CONFIG, **{"image": IMAGE, **asked})


@pytest.mark.slow
@pytest.mark.parametrize("gpus", ["0", "1", "all", "A100:8"])
def test_the_job_holds_kubernetes_own_schema(published, gpus):
    assert published("kubernetes", kubernetes.manifest(run(gpus=gpus))) == ""


@pytest.mark.slow
def test_the_jobset_holds_the_schema_of_jobset_and_of_the_jobs_in_it(published):
    assert published("jobset", kubernetes.manifest(run(workers=4, gpus="2"))) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"gpus": "0", "image": ""},
        {"gpus": "L4"},
        {"gpus": "A100:8", "bucket": "my-runs", "image": ""},
        {"gpus": "L4", "workers": 3, "bucket": "my-runs"},
    ],
)
def test_skypilot_makes_a_task_of_it(published, asked, tmp_path, monkeypatch):
    document = skypilot.task(run(**asked))
    document["file_mounts"]["/input/mnist"] = str(tmp_path)  # SkyPilot looks whether it is there
    document["workdir"] = str(ROOT)
    assert published("skypilot", document) == ""


@pytest.mark.slow
def test_the_schemas_refuse_what_is_wrong(published):
    job = kubernetes.manifest(run())
    job["spec"]["template"]["spec"]["graceSeconds"] = 5
    assert "graceSeconds" in published("kubernetes", job)
    several = kubernetes.manifest(run(workers=2))
    several["spec"]["failurePolicy"]["restarts"] = 5
    assert "lost or changed" in published("jobset", several)
    task = skypilot.task(run(gpus="L4"))
    assert "gpu_count" in published("skypilot", {**task, "gpu_count": 1})


@pytest.mark.slow
def test_the_yaml_reads_back_as_the_same_values(published):
    nasty = ["", "no", "On", "NULL", "1e3", "0x1f", "12:30", "2026-11-30", "- a", "a: b", "a #b"]
    nasty += ["{x}", "[x", "*a", "&a", "!t", "%d", "@x", "`x", "'", '"', "a\nb\n", "a\n\nb\n"]
    nasty += [
        " lead\n",
        "tail \n",
        "tab\there\n",
        "\n",
        "a\n\n",
        "é\n",
        "\x00",
        "~",
        "=",
        "..",
        "a.",
    ]
    values = [*nasty, *nasty[::3], 0, -1, 1.5, True, False, None, [], {}]
    documents = [
        {"list": values, "map": {str(i): v for i, v in enumerate(values)}},
        {key: [key, {key: key}] for key in nasty},
        [[1, [2, {"a": [{"b": {"c": []}}]}]], {"x": {"y": None}}],
        kubernetes.manifest(run(workers=3)),
        skypilot.task(run(gpus="L4", workers=2, bucket="b")),
    ]
    for value in documents:
        assert published("yaml", {"text": yaml_text(value), "value": value}) == ""


def test_the_exit_codes_are_the_workloads_own():
    from workload import errors

    assert INTERRUPTED == errors.INTERRUPTED
    # A trainer that finds another one in its folder may find it gone at the next try.
    worth_a_try = {errors.FINISHED, errors.INTERRUPTED, errors.IN_USE}
    assert set(HOPELESS) == set(errors.MEANINGS) - worth_a_try


def test_tf_config_in_a_jobset_names_every_pod_and_each_its_own_index():
    spec = kubernetes.manifest(run(workers=2))["spec"]["replicatedJobs"][0]["template"]["spec"]
    variables = spec["template"]["spec"]["containers"][0]["env"]
    names = [each["name"] for each in variables]
    assert names.index("WORKER_INDEX") < names.index("TF_CONFIG")  # $(…) sees earlier ones only
    value = variables[names.index("TF_CONFIG")]["value"].replace("$(WORKER_INDEX)", "1")
    hosts = [f"gpubox-cnn-worker-0-{i}.gpubox-cnn:23456" for i in range(2)]
    assert json.loads(value) == {
        "cluster": {"worker": hosts},
        "task": {"type": "worker", "index": 1},
    }


def test_the_job_stages_first_keeps_its_results_and_may_end_in_peace():
    pod = kubernetes.manifest(run(gpus="2"))["spec"]["template"]["spec"]
    stage, train = pod["initContainers"][0], pod["containers"][0]
    assert {"name": "GPUBOX_DATASET", "value": "mnist"} in stage["env"]
    assert {"name": "GPUBOX_INPUT", "value": "/input/mnist"} in train["env"]
    mounts = {each["mountPath"]: each for each in train["volumeMounts"]}
    assert mounts["/output"] == {
        "name": "data",
        "mountPath": "/output",
        "subPath": "runs/gpubox-cnn",
    }
    assert (
        mounts["/input"]["name"] == "input" and {"name": "input", "emptyDir": {}} in pod["volumes"]
    )
    assert train["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert pod["terminationGracePeriodSeconds"] == 120


def test_the_skypilot_script_sets_tf_config_and_starts_the_program(tmp_path):
    script = skypilot.task(run(workers=2, gpus="0", bucket="b"))["run"]
    script = script.replace('"/output/', f'"{tmp_path}/').replace("exec python", "exec echo python")
    done = subprocess.run(
        ["bash", "-euc", script + 'echo "unreachable"'],
        env={**os.environ, "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n", "SKYPILOT_NODE_RANK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "python -m workload cnn\n", done.stderr
    shown = subprocess.run(
        ["bash", "-euc", script.replace("exec echo", "echo") + 'printf "%s" "$TF_CONFIG"'],
        env={**os.environ, "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n", "SKYPILOT_NODE_RANK": "1"},
        capture_output=True,
        text=True,
    )
    assert json.loads(shown.stdout.splitlines()[-1]) == {
        "cluster": {"worker": ["10.0.0.4:23456", "10.0.0.5:23456"]},
        "task": {"type": "worker", "index": 1},
    }
    assert (tmp_path / "gpubox-cnn").is_dir()


def test_the_users_own_packages_are_installed_or_asked_for():
    own = read_config(
        {
            "data": {"mnist": {"path": "~/mnist"}},
            "run": {"data": "mnist", "requirements": "mine.txt"},
        }
    )
    made = skypilot.task(export_of(own, gpus="L4"))
    assert made["file_mounts"]["/gpubox/requirements.txt"] == "mine.txt"
    assert (
        made["setup"].splitlines()[-1].endswith("pip install --quiet -r /gpubox/requirements.txt")
    )
    for to in (kubernetes, skypilot):
        with_image = export_of(own, gpus="L4", image=IMAGE)
        assert "(mine.txt) must be in the image" in to.notes(with_image)[-1]
        assert not any("must be in the image" in line for line in to.notes(run(gpus="L4")))
    assert "/gpubox/requirements.txt" not in skypilot.task(with_image)["file_mounts"]


@pytest.mark.parametrize(
    "text, found",
    [("all", ("", 1)), ("2", ("", 2)), ("0", ("", 0)), ("L4", ("L4", 1)), ("A100:8", ("A100", 8))],
)
def test_gpus(text, found):
    assert gpus_of(text) == found


@pytest.mark.parametrize(
    "text, quantity", [("2gb", "2Gi"), ("512m", "512Mi"), ("64k", "64Ki"), ("1000", "1000")]
)
def test_sizes(text, quantity):
    assert memory_quantity(text) == quantity


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: kubernetes.manifest(run(image="")), "pulls the image from a registry"),
        (lambda: skypilot.task(run(gpus="2")), "wants to know which GPU"),
        (lambda: skypilot.task(run(gpus="0", workers=2)), "must see the same checkpoints"),
        (lambda: run(workers=0), "--workers: expected 1 or more"),
        (lambda: gpus_of("L4:x"), "gpus: expected a count"),
        (lambda: label("9 lives"), "begins with a letter"),
        (lambda: memory_quantity("big"), "run.shm_size"),
        (lambda: export_of(read_config({}), image=IMAGE), "run.data names no data set"),
    ],
)
def test_what_can_not_be_exported_is_said(make, said):
    with pytest.raises(UsageError) as no:
        make()
    assert said in no.value.message


def test_the_file_is_written_whole_and_says_what_it_takes_for_granted(tmp_path):
    out = tmp_path / "job.yaml"
    command = [FAB, "export", "--to", "kubernetes", "--image", IMAGE, "--out", out, "--gpus", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert text.startswith("# Made by `fab export`.\n") and "the claim gpubox-data" in text
    assert [each.name for each in tmp_path.iterdir()] == ["job.yaml"]
    to = subprocess.run([FAB, "export", "--to", "nomad"], cwd=ROOT, capture_output=True, text=True)
    assert to.returncode == 2 and "--to: expected kubernetes or skypilot" in to.stderr
