"""What travels with a run: the workload, the user's own program, and which commit they are of."""

from __future__ import annotations

import base64
import gzip
import io
import subprocess
import tarfile
from pathlib import Path

from deploy.effects.settings import beside_config
from deploy.errors import UsageError
from deploy.plan.quantities import show_size

LARGEST = 32 << 20  # bytes of a user's program folder: more than that is data
LEFT_BEHIND = ("-c", "--constraint", "-e", "--editable")  # lines for pip that name other files
LEFT_OUT = {"__pycache__", ".git", ".venv", ".mypy_cache", ".pytest_cache", "node_modules"}


def packed_program(workload: Path | None, own: Path | None) -> str:
    """A tar.gz in base64: `workload/` and `user/`, the same bytes for the same files.

    UsageError for a folder that is no program.
    """
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as squeezed:
        with tarfile.open(fileobj=squeezed, mode="w") as archive:
            if workload:
                _add(archive, workload, "workload")
            if own:
                if not own.is_dir():
                    raise UsageError(f"run.code: {own} is no folder", "name the program's folder")
                _add(archive, own, "user")
    return base64.b64encode(packed.getvalue()).decode()


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    total = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if LEFT_OUT & set(inside.parts) or path.is_symlink() or not path.is_file():
            continue
        total += path.stat().st_size
        if total > LARGEST:
            raise UsageError(
                f"{folder}: more than {show_size(LARGEST)}, which is no program",
                "keep data out of it: upload it as a data set",
            )
        member = tarfile.TarInfo(f"{name}/{inside.as_posix()}")
        member.size = path.stat().st_size
        member.mode = path.stat().st_mode & 0o777
        with path.open("rb") as file:
            archive.addfile(member, file)


def own_packages(requirements: str) -> str:
    """The text of the file that run.requirements names, its `-r` lines replaced by what they name.

    "" without one; UsageError where it can't be read.
    """
    return _required(beside_config(requirements), ()) if requirements else ""


def _required(path: Path, within: tuple[Path, ...]) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as no:
        reason = no.strerror if isinstance(no, OSError) else "not UTF-8"
        raise UsageError(f"run.requirements: {path}: {reason}", "name a file for pip") from no
    if path in within:
        raise UsageError(f"run.requirements: {path} names itself", "take that line out")
    text = ""
    for line in lines:
        option, _, name = line.strip().replace("=", " ", 1).partition(" ")
        if option in ("-r", "--requirement"):
            text += _required(path.parent / name.strip(), (*within, path))
        elif option in LEFT_BEHIND or option.startswith((".", "/", "file:")):
            raise UsageError(
                f"run.requirements: {path}: {line.strip()}: no other file or folder travels along",
                "write the versions into this file; your own code goes by run.code",
            )
        else:
            text += line + "\n"
    return text


def commit_of(folder: Path) -> tuple[str, bool | None]:
    """(git commit, whether the tree is clean); ("", None) outside of git."""
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return "", None
    return head.strip(), _git(folder, "status", "--porcelain") == ""


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
