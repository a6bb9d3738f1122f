"""The process runner's Python: the user's, the box's where its TensorFlow works, else a venv."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
from typing import Any, Callable

from .locks import locked
from .places import Places
from .publish import read_json, write_json
from .refusal import Refusal

Say = Callable[[str], None]
CONDA = ("/root/miniconda3", "/opt/conda", "~/miniconda3", "~/anaconda3", "/opt/miniconda3")
VENV_REMEDY = "on Debian: apt-get install python3-venv; or set boxes.NAME.python"
VERSIONS = ("3.12", "3.13", "3.11", "3.10")  # TensorFlow 2.21 has wheels for these
PROBE = """
import json, sys
found = {"version": list(sys.version_info[:3]), "tensorflow": "", "gpus": 0}
try:
    import tensorflow as tf
    found["tensorflow"] = tf.__version__
    found["gpus"] = len(tf.config.list_physical_devices("GPU"))
except ImportError:
    pass
print("@probe " + json.dumps(found))
"""


def prepare_python(places: Places, run: dict[str, Any], say: Say) -> str:
    """The path of a Python that can run the program, with the user's own packages where it has any."""
    python = _training_python(places, run, say)
    return with_packages(places, run, python, say) if run.get("packages") else python


def _training_python(places: Places, run: dict[str, Any], say: Say) -> str:
    """A Python with TensorFlow; a venv is made where none is there.

    A program of the user's own with `python = …` needs no TensorFlow: it is taken as it is.
    """
    named = run.get("python") or ""
    if named:
        return _named(places, run, os.path.expanduser(named))
    needs_gpu = run["device"] == "gpu"
    for path in candidates():
        found = probe(places, path)
        if _fits(found, needs_gpu):
            say("Python: {} with TensorFlow {}".format(path, found["tensorflow"]))
            return path
    return make_venv(places, run, say)


def _named(places: Places, run: dict[str, Any], path: str) -> str:
    full = shutil.which(path) or ""
    if not full:
        raise Refusal("BoxUnfit", f"{path}: no such Python here", "set boxes.NAME.python")
    if run.get("needs") == "tensorflow":
        found = probe(places, full)
        if not found.get("tensorflow"):
            raise Refusal("BoxUnfit", f"{full}: it has no TensorFlow", "unset boxes.NAME.python")
        if run["device"] == "gpu" and not found["gpus"]:
            raise Refusal("GpuError", f"{full}: its TensorFlow sees no GPU", "fab doctor")
    return full


def candidates() -> list[str]:
    """Pythons that may have TensorFlow: the one in PATH, and conda's in the known places."""
    paths = [shutil.which("python3") or "", shutil.which("python") or ""]
    for root in CONDA:
        root = os.path.expanduser(root)
        paths += [os.path.join(root, "bin/python"), *glob.glob(root + "/envs/*/bin/python")]
    return list(dict.fromkeys(path for path in paths if path and os.access(path, os.X_OK)))


def _fits(found: dict[str, Any], needs_gpu: bool) -> bool:
    version = tuple(int(part) for part in found.get("tensorflow", "").split(".")[:2] if part)
    return version >= (2, 16) and (not needs_gpu or bool(found["gpus"]))


def probe(places: Places, path: str) -> dict[str, Any]:
    """What a Python has, asked once and remembered for as long as neither it nor its packages
    change; {} where it does not answer within two minutes."""
    import json

    key = _key(path)
    store = os.path.join(places.home, "pythons.json")
    try:
        known = read_json(store)
    except (OSError, ValueError):
        known = {}
    if key in known and known[key].get("tensorflow"):
        return dict(known[key])
    try:
        done = subprocess.run(
            [path, "-c", PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=120,
            env=_plain_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("@probe ")]
    found = json.loads(lines[-1][len("@probe ") :]) if lines else {}
    write_json(store, {**known, "schema": 1, key: found})
    return dict(found)


def _key(path: str) -> str:
    """A Python's path, and when its packages last changed."""
    real = os.path.dirname(os.path.dirname(path))
    stamps = [
        os.stat(p).st_mtime_ns for p in sorted(glob.glob(real + "/lib/python*/site-packages"))
    ]
    return f"{path} {os.stat(path).st_mtime_ns} {stamps}"


def venv_path(places: Places, run: dict[str, Any], python: str) -> str:
    """DATA/.gpubox-venv-HASH, by the locked requirements and the Python: it outlives the box."""
    content = f"{python_version(python)}\n{run['requirements']}".encode()
    return os.path.join(places.data, ".gpubox-venv-" + hashlib.sha256(content).hexdigest()[:16])


def make_venv(places: Places, run: dict[str, Any], say: Say) -> str:
    """A venv from the locked requirements by pip with the user's own settings, made once."""
    if not run.get("requirements"):
        raise Refusal("BoxUnfit", "no Python with TensorFlow on this box", "set boxes.NAME.python")
    base = base_python()
    folder = venv_path(places, run, base)
    python, ready = os.path.join(folder, "bin", "python"), os.path.join(folder, ".ready")
    if os.path.exists(ready):
        return python
    with locked(folder + ".lock", "making a Python environment", wait=1800):
        if os.path.exists(ready):
            return python
        say(f"making a Python environment in {folder} (once; some minutes)")
        shutil.rmtree(folder, ignore_errors=True)
        _pip(run, base, folder, python, say)
        write_json(ready, {"schema": 1, "python": base})
    return python


def own_path(places: Places, run: dict[str, Any], python: str) -> str:
    """DATA/.gpubox-venv-HASH, by the user's packages and the Python that they stand upon."""
    content = f"{_key(python)}\n{run['packages']}".encode()
    return os.path.join(places.data, ".gpubox-venv-" + hashlib.sha256(content).hexdigest()[:16])


def with_packages(places: Places, run: dict[str, Any], base: str, say: Say) -> str:
    """A venv that sees all that `base` has and holds the user's own packages, made once.

    `base` itself is never changed, and what it has keeps its version.
    """
    folder = own_path(places, run, base)
    python, ready = os.path.join(folder, "bin", "python"), os.path.join(folder, ".ready")
    with locked(folder + ".lock", "installing your packages", wait=1800):
        if os.path.exists(ready):
            return python
        say("installing your packages with pip (once)")
        shutil.rmtree(folder, ignore_errors=True)
        _step([base, "-m", "venv", folder], f"{base} can't make a venv", VENV_REMEDY)
        _look_through(folder, python, base)
        held = os.path.join(folder, "constraints.txt")
        with open(held, "w", encoding="utf-8") as file:
            file.write(_said_by([python, "-m", "pip", "list", "--format=freeze"]))
        _pip_install(folder, python, run["packages"], "--constraint", held)
        write_json(ready, {"schema": 1, "python": base})
    return python


def _look_through(folder: str, python: str, base: str) -> None:
    """Let the venv import what `base` has: also where that is a venv, which venv itself can't do."""
    script = "import sys; print('\\n'.join(p for p in sys.path if p.endswith('-packages')))"
    sites = _said_by([base, "-c", script]).splitlines()
    [own] = glob.glob(os.path.join(folder, "lib", "python*", "site-packages"))
    with open(os.path.join(own, "gpubox-base.pth"), "w", encoding="utf-8") as file:
        file.writelines(f"import site; site.addsitedir({site!r})\n" for site in sites)


def _said_by(command: list[str]) -> str:
    environment = {**_plain_environment(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, check=True
    )
    return done.stdout.decode()


def _pip(run: dict[str, Any], base: str, folder: str, python: str, say: Say) -> None:
    _step([base, "-m", "venv", folder], f"{base} can't make a venv", VENV_REMEDY)
    say("installing the packages with pip")
    _pip_install(folder, python, run["requirements"])


def _pip_install(folder: str, python: str, requirements: str, *options: str) -> None:
    wanted = os.path.join(folder, "requirements.txt")
    with open(wanted, "w", encoding="utf-8") as file:
        file.write(requirements)
    command = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    remedy = "is a package index reachable from the box?"
    _step([*command, *options, "-r", wanted], "pip failed", remedy)


def _step(command: list[str], what: str, remedy: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_plain_environment(),
    )
    if done.returncode != 0:
        last = (done.stdout.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
        raise Refusal("BoxUnfit", f"{what}: {last[:200]}", remedy)


def _plain_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def base_python() -> str:
    """A Python of a version that TensorFlow has wheels for."""
    names = [f"python{version}" for version in VERSIONS]
    for path in [shutil.which(name) or "" for name in names] + candidates():
        if path and python_version(path) in VERSIONS:
            return path
    raise Refusal(
        "BoxUnfit",
        "no Python 3.10 to 3.13 on this box",
        "install one there, or set boxes.NAME.python to one with TensorFlow",
    )


def python_version(path: str) -> str:
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", script], stdout=subprocess.PIPE, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode().strip()
