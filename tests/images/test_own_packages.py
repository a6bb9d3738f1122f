"""run.requirements: the user's own packages as a layer of their own, and in a process runner's Python."""

import base64
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile

import pytest

from deploy.effects.engine import inputs_digest
from deploy.effects.program import own_packages
from deploy.errors import UsageError
from deploy.onbox.cleanup import _venvs
from deploy.onbox.places import Places
from deploy.onbox.pythons import prepare_python
from deploy.onbox.refusal import Refusal
from images import build
from tests.box.box import docker

TAG = "gpubox-test/own:latest"
SENTINEL = "s3cr3t-of-a-private-index"


def test_a_list_of_packages_travels_as_one_text(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBOX_CONFIG", str(tmp_path / "gpubox.toml"))
    (tmp_path / "requirements.txt").write_text("# ours\n-r more/base.txt\ntoolz>=1\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/base.txt").write_text("six==1.16.0\n")
    assert own_packages("") == ""
    assert own_packages("requirements.txt") == "# ours\nsix==1.16.0\ntoolz>=1\n"
    assert inputs_digest("cpu", "six\n") != inputs_digest("cpu", "toolz\n") != inputs_digest("cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-r absent.txt\n", "absent.txt: No such file"),
        ("-r requirements.txt\n", "names itself"),
        ("-e .\n", "no other file or folder travels"),
        ("-c limits.txt\n", "no other file or folder travels"),
        ("--constraint=limits.txt\n", "no other file or folder travels"),
        ("./wheels/x.whl\n", "no other file or folder travels"),
    ],
)
def test_what_would_stay_behind_is_refused_at_once(tmp_path, monkeypatch, text, said):
    monkeypatch.setenv("GPUBOX_CONFIG", str(tmp_path / "gpubox.toml"))
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(UsageError, match=said):
        own_packages("requirements.txt")


@pytest.fixture
def make(cpu_image, tmp_path, builds_alone):
    """`make(TEXT, NAME=value…)` builds the CPU image with these packages; what docker build said."""

    def run(text, check=True, **environment):
        own = tmp_path / "requirements.txt"
        own.write_text(text)
        command = [str(build.ROOT / "images/build.py"), "cpu", "--tag", TAG]

        done = subprocess.run(
            [*command, "--requirements", str(own)],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done

    yield run
    docker("image", "rm", TAG, check=False)


def layers(tag):
    return json.loads(docker("image", "inspect", "--format", "{{json .RootFS.Layers}}", tag).stdout)


def python_says(code, *options):
    return docker("run", "--rm", "--network", "none", *options, TAG, "python", "-c", code).stdout


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_they_are_a_layer_of_their_own_and_import(make, cpu_image):
    make("toolz==0.12.1\n")
    first = layers(TAG)
    code = "import toolz, tensorflow, numpy; print(toolz.__version__, toolz.__cached__)"
    version, compiled = python_says(code).split()
    assert version == "0.12.1" and compiled.endswith(".pyc")
    make("toolz==1.0.0\n")
    second = layers(TAG)
    assert python_says("import toolz; print(toolz.__version__)").strip() == "1.0.0"
    make("# none\n")
    ours = layers(TAG)
    own = next(number for number, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    # nothing below is made or shipped anew: the base, TensorFlow, the locked packages
    assert first[:own] == second[:own] == ours[:own] and own >= 4
    sizes = docker("history", "--format", "{{.Size}}", "--human=false", TAG).stdout.split()
    assert sum(int(size) for size in sizes[: sizes.index("0")]) < 2 << 20


@pytest.mark.engine
@pytest.mark.slow
def test_what_the_image_has_keeps_its_version(make):
    done = make("numpy==1.26.4\n", check=False)
    assert done.returncode != 0 and "numpy==1.26.4" in done.stderr
    assert "ResolutionImpossible" in done.stderr or "conflict" in done.stderr.lower()


@pytest.mark.engine
@pytest.mark.slow
def test_with_hashes_a_wrong_one_is_refused(make):
    wrong = "toolz==0.12.1 --hash=sha256:" + "0" * 64 + "\n"
    done = make(wrong, check=False)
    assert done.returncode != 0 and "DO NOT MATCH" in done.stderr
    found = [w for w in done.stderr.split() if len(w) == 64 and w != "0" * 64]
    make(f"toolz==0.12.1 --hash=sha256:{found[-1]}\n")
    assert python_says("import toolz; print(toolz.__version__)").strip() == "0.12.1"


def wheel():
    """A package of one module, as a private index has it."""
    packed = io.BytesIO()
    about = "gpubox_private-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("gpubox_private.py", "WORD = 'found'\n")
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: gpubox-private\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = ["gpubox_private.py", f"{about}/METADATA", f"{about}/WHEEL"]
        lines = "".join(f"{name},,\n" for name in [*names, f"{about}/RECORD"])
        archive.writestr(f"{about}/RECORD", lines)
    return packed.getvalue()


class Index(http.server.BaseHTTPRequestHandler):
    """A package index that asks for a password."""

    def do_GET(self):
        login = base64.b64encode(f"user:{SENTINEL}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {login}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        name = "gpubox_private-1.0-py3-none-any.whl"
        content = wheel()
        page = f'<a href="/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a>'
        known = {f"/{name}": content, "/simple/gpubox-private/": page.encode()}
        if self.path not in known:
            self.send_error(404)
            return
        self.send_response(200)
        kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(known[self.path])))
        self.end_headers()
        self.wfile.write(known[self.path])

    def log_message(self, *_):
        pass


@pytest.fixture
def private_index():
    """Its address as a build sees it, with the password in it; and the address of its host."""
    form = "{{(index .IPAM.Config 0).Gateway}}"
    gateway = docker("network", "inspect", "bridge", "--format", form).stdout.strip()
    server = http.server.ThreadingHTTPServer((gateway, 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://user:{SENTINEL}@{gateway}:{server.server_port}/simple", gateway
    server.shutdown()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_index_with_a_password_serves_and_its_password_stays_outside(make, private_index):
    """It is in no word of the build, no layer, no label and no history."""
    url, host = private_index
    done = make("gpubox-private\n", PIP_EXTRA_INDEX_URL=url, PIP_TRUSTED_HOST=host)
    assert python_says("import gpubox_private; print(gpubox_private.WORD)").strip() == "found"
    told = done.stdout + done.stderr + docker("image", "inspect", TAG).stdout
    assert SENTINEL not in told + docker("history", "--no-trunc", TAG).stdout
    save = subprocess.Popen(["docker", "save", TAG], stdout=subprocess.PIPE)
    found = subprocess.run(["grep", "-c", "-a", SENTINEL], stdin=save.stdout, text=True)
    assert save.wait() == 0 and found.returncode == 1


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_deploy_trains_with_them(make, tmp_path, monkeypatch):
    """On this machine's own engine: the deploy says which packages, builds, and the run imports."""
    out = tmp_path / "box"
    (tmp_path / "requirements.txt").write_text("toolz==1.0.0\n")
    script = "import toolz; print('toolz', toolz.__version__)"
    (tmp_path / "gpubox.toml").write_text(
        f"""
[boxes.local]
runner = "docker"
device = "cpu"
data = "{out}/data"
input = "{out}/input"
[run]
requirements = "requirements.txt"
command = ["python", "-c", {json.dumps(script)}]
"""
    )
    monkeypatch.setenv("GPUBOX_CONFIG", str(tmp_path / "gpubox.toml"))
    fab = [sys.executable, "-m", "fabric", "deploy", "--json"]
    planned = subprocess.run([*fab, "--dry-run"], capture_output=True, text=True, cwd=build.ROOT)
    assert "with your packages of requirements.txt" in planned.stderr, planned.stderr
    done = subprocess.run(fab, capture_output=True, text=True, cwd=build.ROOT)
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    log = out / "data/runs" / result["id"] / "logs"
    text = "".join(path.read_text() for path in log.iterdir())
    assert "toolz 1.0.0" in text


@pytest.fixture
def places(tmp_path):
    for name in ("data", "runs", "home"):
        (tmp_path / name).mkdir()
    return Places(str(tmp_path / "data"), "", str(tmp_path / "runs"), str(tmp_path / "home"), [])


@pytest.mark.slow
def test_the_process_runner_has_them_upon_the_boxs_own_python(places):
    """What that Python has is seen and keeps its version; it is itself not changed."""
    run = {"python": sys.executable, "device": "cpu", "packages": "toolz==1.0.0\n"}
    said = []
    python = prepare_python(places, run, said.append)
    code = "import toolz, pytest; print(toolz.__version__, pytest.__file__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    version, where = done.stdout.split()
    assert version == "1.0.0" and where == pytest.__file__
    assert subprocess.run([sys.executable, "-c", "import toolz"], capture_output=True).returncode
    assert prepare_python(places, run, said.append) == python and len(said) == 1
    runs = [{"run": run, "state": {}}]
    assert [item.verdict for item in _venvs(places, runs)] == ["keep"]
    assert [item.verdict for item in _venvs(places, [])] == ["remove"]
    held = {**run, "packages": f"pytest!={pytest.__version__}\n"}
    with pytest.raises(Refusal, match="pip failed"):
        prepare_python(places, held, said.append)
