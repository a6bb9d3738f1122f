"""`fab upload`: bring a folder or an archive to the box's /data as a new version of a data set."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.effects.agent import Agent, beginning
from deploy.effects.hashes import Memory
from deploy.effects.settings import beside_config
from deploy.errors import DataError, TransferError, UsageError
from deploy.plan.config import DataSet
from deploy.plan.transfer import check_name, is_archive
from deploy.verbs.desk import Desk
from deploy.verbs.uploading import Source, Upload, surely_sends


def upload(desk: Desk, path: str, name: str, layout: str, exclude: str) -> list[dict[str, Any]]:
    """One path or configured set to each of the desk's boxes."""
    name, wanted = asked_for(desk, path, name, layout, exclude)
    results = []
    for host in desk.hosts:
        with source_of(name, wanted) as source:
            ahead = beginning("receive") if surely_sends(desk, source) else ""
            with desk.open(host, ahead) as box:
                results.append({"box": host, **bring(desk, box, name, source)})
    return results


def asked_for(desk: Desk, path: str, name: str, layout: str, exclude: str) -> tuple[str, DataSet]:
    """Name and settings: from the config by name, or from the path on the command line."""
    if not path and not name:
        name = desk.config.run.data
    configured = {str(key): each for key, each in desk.config.data.items()}
    known = configured.get(name) or (configured.get(path) if not name else None)
    if known and known is configured.get(path):
        name, path = path, ""
    if not path and known is None and not name:
        raise UsageError("no data set was named", "fab upload FOLDER [--name NAME]")
    if not path and known is None:  # no name of the config: a folder or an archive, then
        if not (Path.cwd() / Path(name).expanduser()).exists():
            names = ", ".join(configured) or "none"
            raise UsageError(
                f"no data set {name!r} in gpubox.toml, and no such folder or archive",
                f"gpubox.toml knows: {names}",
            )
        path, name = name, ""
    wanted = known or DataSet(path)
    changes: dict[str, Any] = {"path": str(Path.cwd() / Path(path).expanduser())} if path else {}
    changes.update({"layout": layout} if layout else {})
    more = tuple(each for each in exclude.split(",") if each)
    changes.update({"exclude": (*wanted.exclude, *more)} if more else {})
    if layout not in ("", "auto", "packed", "files"):
        raise UsageError(f"--layout {layout}: there is auto, packed and files", "")
    return name or Path(path.rstrip("/")).name.split(".")[0], DataSet(**{**vars(wanted), **changes})


def upload_set(desk: Desk, box_agent: Agent, name: str, dataset_config: DataSet) -> dict[str, Any]:
    """Bring one set to one box; what is there already is not sent.

    Returns name, version (ID), files, bytes, sent_bytes, sent_files, skipped, changed (False where
    the box had this very version as its current one). With --dry-run nothing changes on the box.
    """
    with source_of(name, dataset_config) as source:
        return bring(desk, box_agent, name, source)


@contextmanager
def source_of(name: str, wanted: DataSet) -> Iterator[Source]:
    """What is to go up, its scan begun; forgotten when the block ends.

    What is wrong with the name or the path is raised here, before a box is reached.
    """
    if wrong := check_name(name):
        raise UsageError(wrong, "choose one with --name")
    root = os.path.realpath(beside_config(wanted.path))
    if not os.path.exists(root):
        raise DataError(f"{root} is not there", "check the path (`fab get mnist` fetches MNIST)")
    if not os.path.isdir(root) and not is_archive(root):
        raise DataError(f"{root} is neither a folder nor an archive", "name one of these")
    memory = Memory(root, (*wanted.exclude, wanted.zip_names))
    with tempfile.TemporaryDirectory(dir=memory.folder, ignore_cleanup_errors=True) as folder:
        source = Source(root, wanted, memory, Path(folder))
        try:
            yield source
        finally:
            source.scanning.stop()


def bring(desk: Desk, box: Agent, name: str, source: Source) -> dict[str, Any]:
    """One source to one box; once more where parts did not arrive as they were sent."""
    job = Upload(desk, box, name, source)
    for last_try in (False, True):
        try:
            return job.run()
        except TransferError:
            if last_try or not job.damaged:
                raise
            desk.show.warn("some parts did not arrive as they were sent; once more")
            source.scan_again()
    raise AssertionError
