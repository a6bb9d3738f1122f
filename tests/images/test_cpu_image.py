"""The CPU image: its size, its user, signals, errors, and that it is compiled, licensed, secretless."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from images import build
from tests.box.box import docker

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]
LIMIT = 1_000_000_000  # bytes; the target of bench/images as well
SENTINEL = "s3cr3t-sentinel-of-a-build"


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def results(tmp_path):
    """An output folder of the container's usual user."""
    folder = tmp_path / "output"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    return folder


def test_it_is_small(cpu_image):
    assert int(docker("image", "inspect", "--format", "{{.Size}}", cpu_image).stdout) <= LIMIT


def test_it_imports_tensorflow_as_a_stranger_who_can_write_nothing(cpu_image):
    script = (
        "import tensorflow as tf, tensorboard.main, os; print(tf.__version__, os.getuid());"
        "from pathlib import Path; site = Path(tf.__file__).parents[1];"
        "bare = [p for p in site.rglob('*.py') if p.parent.name != '__pycache__' and not"
        " list((p.parent / '__pycache__').glob(p.stem + '.*.pyc'))]; print(len(bare))"
    )
    options = ["--read-only", "--tmpfs", "/tmp", "--user", "4321:4321", "--network", "none"]
    done = docker("run", "--rm", *options, cpu_image, "python", "-c", script)
    version, user, not_compiled = done.stdout.split()
    assert version.startswith("2.21.") and user == "4321"
    # what no compiler takes: templates and files for other Pythons
    assert int(not_compiled) < 10


def test_it_imports_tensorflow_without_the_collector_which_goes_on_after_it(cpu_image):
    script = "import tensorflow, gc; print(gc.get_freeze_count() > 100_000, gc.isenabled())"
    done = docker("run", "--rm", "--network", "none", cpu_image, "python", "-c", script)
    assert done.stdout.split() == ["True", "True"]


# Tests' own flags of absl, which come with absl.testing; names that only tf_export asks for; and what
# a loop over a set happens to leave behind.
NOT_MISSED = ("FLAGS.__flags", ":_NAME_TO_SYMBOL_MAPPING", "weak_tensor_ops:tensor_oper")


def test_what_comes_later_has_registered_what_a_plain_import_registers(cpu_image):
    program = Path(__file__).with_name("registered.py")
    run = ["run", "--rm", "--interactive", "--network", "none", "--volume", f"{program}:/it.py:ro"]
    plainly = ["--env", "GPUBOX_PLAIN_IMPORT=1", cpu_image, "python", "/it.py"]
    plain = docker(*run, *plainly).stdout
    everything = json.loads(plain)
    assert len(everything["registered"]) > 10_000 and len(everything["tables"]) > 40
    tables = list(everything["tables"])
    found = json.loads(docker(*run, cpu_image, "python", "/it.py", *tables, input=plain).stdout)
    for used in ("", *tables):
        lost = found[used]
        assert lost.pop("names", None) == everything["tables"].get(used), used
        flags = lost.get("absl.flags._flagvalues:FLAGS.__flags", [])
        assert {flag.strip("'")[:5] for flag in flags} <= {"test_", "xml_o"}
        assert [where for where in lost if not where.endswith(NOT_MISSED)] == [], used


def test_what_comes_later_comes_when_it_is_asked_for(cpu_image):
    script = (
        "import sys, tensorflow as tf\n"
        "print('keras' in sys.modules, 'tensorflow._api.v2.compat.v1' in sys.modules)\n"
        "import tensorflow.compat.v1 as old\n"
        "from tensorflow.keras import layers\n"
        "print(old.Session.__name__, tf.compat.v1.Session is old.Session, tf.lite.Interpreter.__name__)\n"
        "model = tf.keras.Sequential([layers.Input([2]), layers.Dense(1)])\n"
        "model.compile('adam', 'mse')\n"
        "model.fit(tf.ones([8, 2]), tf.ones([8, 1]), verbose=0)\n"
        "tf.saved_model.save(tf.Module(), '/tmp/saved'); tf.saved_model.load('/tmp/saved')\n"
        "print(abs(tf.constant(-2.0)).numpy(), 'tensorflow.python.keras' in sys.modules)\n"
    )
    done = docker("run", "--rm", "--network", "none", cpu_image, "python", "-c", script)
    assert done.stdout.split() == [
        "False",
        "False",
        "Session",
        "True",
        "Interpreter",
        "2.0",
        "True",
    ]


def test_the_usual_user_is_not_root(cpu_image):
    assert docker("run", "--rm", cpu_image, "id", "-u").stdout.strip() == "1000"


def test_root_becomes_the_owner_of_the_output_and_keeps_no_capability(cpu_image, tmp_path):
    os.chown(tmp_path, 5432, 6543)
    options = ["--user", "0:0", "--cap-drop", "ALL", "--volume", f"{tmp_path}:/output"]
    options += [word for cap in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", cap)]
    script = "id -u; id -g; grep -h -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status"
    done = docker("run", "--rm", *options, cpu_image, "sh", "-c", script)
    words = done.stdout.split()
    assert words[:2] == ["5432", "6543"]
    assert words[3:9:2] == ["0" * 16] * 3 and words[-1] == "1"


@pytest.mark.parametrize("init", [[], ["--init"]], ids=["bare", "init"])
def test_sigterm_reaches_the_program(cpu_image, init):
    script = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    container = docker("run", "--detach", *init, cpu_image, "sh", "-c", script).stdout.strip()
    try:
        wait_for(lambda: "ready" in docker("logs", container).stdout)
        docker("stop", "--time", "60", container)
        state = docker("inspect", "--format", "{{.State.ExitCode}}", container).stdout.strip()
        assert state == "75"  # 137: killed after the grace
    finally:
        docker("rm", "--force", container)


@pytest.mark.tensorflow
def test_a_stopped_training_saves_and_the_same_command_goes_on(cpu_image, mnist, results):
    mounts = ["--volume", f"{mnist}:/input:ro", "--volume", f"{results}:/output"]
    train = ["python", "-m", "workload", "bp", "--steps"]
    container = docker("run", "--detach", *mounts, cpu_image, *train, "1000000").stdout.strip()
    try:
        wait_for(lambda: (results / "progress.json").exists())
        wait_for(lambda: json.loads((results / "progress.json").read_text())["step"] > 0)
        docker("stop", "--time", "60", container)
        assert (
            docker("inspect", "--format", "{{.State.ExitCode}}", container).stdout.strip() == "75"
        )
        latest = (results / "checkpoints" / "LATEST").read_text().strip()
        step = int(latest.removeprefix("step_"))
        assert step > 0 and (results / "checkpoints" / latest / "SHA256SUMS").exists()
    finally:
        docker("rm", "--force", container)
    done = docker("run", "--rm", *mounts, cpu_image, *train, str(step + 50), check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((results / "result.json").read_text())["step"] == step + 50


def test_an_output_that_cannot_be_written_is_one_line_with_the_numbers(cpu_image, tmp_path):
    os.chown(tmp_path, 5432, 6543)
    tmp_path.chmod(0o755)
    done = docker("run", "--rm", "--volume", f"{tmp_path}:/output", cpu_image, check=False)
    assert done.returncode == 73
    [line] = done.stderr.splitlines()
    assert "5432:6543" in line and "GPUBOX_UID" in line


def test_where_a_gpu_is_required_it_never_trains(cpu_image):
    done = docker("run", "--rm", "--env", "REQUIRE_GPU=1", cpu_image, check=False)
    assert done.returncode == 69
    [line] = done.stderr.splitlines()
    assert "CPU image" in line and "gpu-train" in line


def test_a_set_is_staged_first_where_one_is_named(cpu_image, tmp_path, results):
    data, fast = tmp_path / "data", tmp_path / "input"
    (data / "set").mkdir(parents=True)
    (data / "set" / "file").write_text("content")
    fast.mkdir()
    for each in (data, data / "set", data / "set" / "file", fast):
        os.chown(each, 1000, 1000)
    mounts = ["--volume", f"{data}:/data:ro", "--volume", f"{fast}:/input"]
    mounts += ["--volume", f"{results}:/output", "--env", "GPUBOX_DATASET=set"]
    command = ["sh", "-c", 'echo "$GPUBOX_INPUT"; cat "$GPUBOX_INPUT/file"']
    done = docker("run", "--rm", *mounts, cpu_image, *command)
    where, content = done.stdout.splitlines()
    assert where.startswith("/input/") and content == "content"
    again = docker("run", "--rm", *mounts, cpu_image, *command)
    assert "there already" in again.stderr and again.stdout == done.stdout
    missing = [*mounts[:-1], "GPUBOX_DATASET=absent"]
    refused = docker("run", "--rm", *missing, cpu_image, *command, check=False)
    assert refused.returncode != 0 and "absent" in refused.stderr and refused.stdout == ""


def test_licences_are_kept(cpu_image):
    site = "/opt/venv/lib/python3*/site-packages"
    files = ["/usr/share/doc/libc6/copyright", "/usr/share/common-licenses/GPL-3"]
    files += [f"{site}/tensorflow/THIRD_PARTY_NOTICES.txt", f"{site}/numpy-*.dist-info/licenses"]
    script = f"for each in {' '.join(files)}; do [ -e $each ] || echo missing $each; done"
    assert docker("run", "--rm", cpu_image, "sh", "-c", script).stdout == ""


def test_a_changed_workload_changes_the_last_layer_alone(cpu_image, tmp_path, builds_alone):
    """So it is rebuilt and shipped as that one layer, from another clone as well: its files have other
    times, and modes of another umask."""
    tag = "gpubox-test/changed:latest"
    context = build.ROOT
    copy = tmp_path / "clone"
    copy.mkdir()
    for name in ("images", "workload", "deploy", "Dockerfile.cpu", ".dockerignore"):
        subprocess.run(["cp", "-r", str(context / name), str(copy / name)], check=True)
    copied = [
        copy / name for name in ("workload", "deploy", "images/entrypoint", "images/gpu_check.py")
    ]
    subprocess.run(["chmod", "-R", "go-rwx", *copied], check=True)
    (copy / "workload" / "changed.py").write_text("# new\n")
    try:
        command = [str(copy / "images/build.py"), "cpu", "--quiet", "--tag", tag]
        subprocess.run(command, check=True, capture_output=True)
        form = "{{json .RootFS.Layers}}"
        was = json.loads(docker("image", "inspect", "--format", form, cpu_image).stdout)
        now = json.loads(docker("image", "inspect", "--format", form, tag).stdout)
        assert len(was) == len(now) and was != now
        assert was[:-1] == now[:-1]
    finally:
        docker("image", "rm", tag, check=False)


def layers(tag):
    told = docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", tag).stdout
    return json.loads(told)


def test_no_setting_of_the_builder_stays_in_the_image(cpu_image, tmp_path, builds_alone):
    """Index, proxy and authority of a build from scratch are in no layer, label or history."""
    tag = "gpubox-test/secret:latest"
    ca = tmp_path / "ca.pem"
    usual = build.authority(dict(os.environ))
    text = Path(usual).read_text() if usual else ""
    ca.write_text(f"# {SENTINEL}\n{text}")
    variables = {"PIP_CERT": str(ca), "PIP_TRUSTED_HOST": SENTINEL, "no_proxy": SENTINEL}
    command = [str(build.ROOT / "images/build.py"), "cpu", "--quiet", "--tag", tag]
    try:
        done = subprocess.run(
            [*command, "--no-cache"],
            capture_output=True,
            text=True,
            env={**os.environ, **variables},
        )
        assert done.returncode == 0 and SENTINEL not in done.stdout + done.stderr
        assert layers(tag) == layers(cpu_image), "made again, they are the same bytes"
        told = docker("image", "inspect", tag).stdout
        told += docker("history", "--no-trunc", tag).stdout
        assert SENTINEL not in told
        save = subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE)
        found = subprocess.run(["grep", "-c", "-a", SENTINEL], stdin=save.stdout, text=True)
        assert save.wait() == 0 and found.returncode == 1
    finally:
        docker("image", "rm", tag, check=False)
