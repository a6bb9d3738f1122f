"""Virtual environments that some tests need, made once beside the sources and kept."""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def venv_with(name, *packages):
    """The folder of a venv with these packages (`.venv-NAME-…`, which git ignores)."""
    mark = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    venv = ROOT / f".venv-{name}-{mark}"
    uv = Path(sys.executable).parent / "uv"
    if not (venv / "ready").exists():
        subprocess.run([uv, "venv", "--quiet", "--clear", venv], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", venv / "bin/python", *packages]
        subprocess.run(install, check=True)
        (venv / "ready").touch()
    return venv
