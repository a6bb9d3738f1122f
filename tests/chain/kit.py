"""What the tests of the whole chain share: fab as a person runs it, and checksums of checkpoints."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FAB = Path(sys.executable).parent / "fab"


def fab(*words, code=0, **options):
    """Run fab as a person would; its answer of --json, or its text."""
    done = subprocess.run(
        [str(FAB), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        **options,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)["results"] if "--json" in words else done.stdout + done.stderr


def check_sums(folder):
    """Every file of a checkpoint against the checksums that the workload wrote."""
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert lines
    for line in lines:
        digest, name = line.split("  ", 1)
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
