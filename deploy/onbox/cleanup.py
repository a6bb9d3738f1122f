"""What can be cleared away on this box, why, and how much it frees: `fab gc`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from typing import Any, Iterator, NamedTuple

from .docker_runner import docker
from .overview import home_of
from .places import Places, find_places
from .report import size_of
from .runs import ENDED, ID, list_runs, read_state
from .steps import newest_step

DAY = 86400.0
REMOVE, KEEP = "remove", "keep"
IMAGE = "{{.ID}} {{.Repository}}:{{.Tag}}"


class Item(NamedTuple):
    """One thing: `kind` (run, image, staged, venv, program, left-over), where, bytes, verdict."""

    kind: str
    name: str
    path: str
    bytes: int
    verdict: str
    why: str


def run_verdict(
    state: dict[str, Any], newest: int, home: int, age: float, limit: float
) -> tuple[str, str]:
    """Whether an old run may go, and why. Pure. All ages in seconds; -1 stands for no step.

    What could still be wanted stays: living and interrupted runs, and a newest checkpoint that
    has not come home.
    """
    if state["state"] not in ("finished", "failed", "stopped"):
        return KEEP, f"it is {state['state']}"
    if age < limit:
        return KEEP, f"ended {age / DAY:.0f} days ago, limit {limit / DAY:.0f}"
    if newest > home:
        return KEEP, f"its step {newest} is not home (fab fetch)"
    return REMOVE, f"{state['state']} {age / DAY:.0f} days ago" + ("" if newest < 0 else ", home")


def gc(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Verb: the items, and (without `dry_run`) those that were removed. `days`: age of old runs."""
    places = find_places(request)
    items = list(survey(places, float(request.get("days", 30)) * DAY, time.time()))
    if not request.get("dry_run"):
        for item in items:
            if item.verdict == REMOVE:
                wire.event(doing=f"remove {item.kind} {item.name}")
                _remove(item)
    return {"items": [item._asdict() for item in items]}


def survey(places: Places, limit: float, now: float) -> Iterator[Item]:
    """Everything that is ours and takes room, with its verdict."""
    runs = [each for each in list_runs(places) if not each.get("damaged")]
    yield from _runs(runs, limit, now)
    yield from _images(runs)
    yield from _staged(places, runs)
    yield from _venvs(places, runs)
    yield from _programs(places)
    yield from _left_overs(places, now)


def _runs(runs: list[dict[str, Any]], limit: float, now: float) -> Iterator[Item]:
    for each in runs:
        newest, home = newest_step(each["folder"]), (home_of(each["folder"]) or {}).get("step", -1)
        age = now - float(each["state"]["since"])
        verdict, why = run_verdict(each["state"], newest, int(home), age, limit)
        yield Item("run", each["id"], each["folder"], size_of(each["folder"]), verdict, why)


def _images(runs: list[dict[str, Any]]) -> Iterator[Item]:
    """Images of ours without a name: a newer one has taken it. A run that may go on keeps its."""
    wanted = {e["run"].get("image") for e in runs if e["state"]["state"] not in ("finished",)}
    label = "label=org.opencontainers.image.title"
    listed = docker("image", "ls", "--no-trunc", "--filter", label, "--format", IMAGE)
    for line in listed.stdout.splitlines():
        image, _, name = line.partition(" ")
        inspected = docker("image", "inspect", "--format", "{{.Size}}", image).stdout.strip()
        size = int(inspected or 0)
        if not name.startswith("<none>"):
            yield Item("image", name, image, size, KEEP, "it has a name")
        elif image in wanted:
            yield Item("image", image[:19], image, size, KEEP, "a run may be resumed with it")
        else:
            yield Item("image", image[:19], image, size, REMOVE, "a newer one has its name")


def _staged(places: Places, runs: list[dict[str, Any]]) -> Iterator[Item]:
    """Staged versions: /data has them all, so that only what is used now has to stay."""
    folder = os.path.join(places.input, ".gpubox")
    used = {e["state"].get("data") for e in runs if e["state"]["state"] not in ENDED}
    for name in _names(folder):
        path = os.path.join(folder, name)
        if "@" not in name or not os.path.isdir(path) or name.endswith(".part"):
            continue
        link = os.path.join(places.input, name.split("@")[0])
        if path in used:
            yield Item("staged", name, path, size_of(path), KEEP, "a run uses it")
        elif os.path.realpath(link) == os.path.realpath(path):
            yield Item("staged", name, path, size_of(path), KEEP, "it is the newest")
        else:
            yield Item("staged", name, path, size_of(path), REMOVE, "an older version")


def _venvs(places: Places, runs: list[dict[str, Any]]) -> Iterator[Item]:
    """Environments of the process runner; one is kept while a run of this box was made for it."""
    from .publish import read_json
    from .pythons import own_path, venv_path

    names = [name for name in _names(places.data) if name.startswith(".gpubox-venv-")]
    for name in names:
        path = os.path.join(places.data, name)
        if name.endswith(".lock"):
            continue
        wanted = set()
        with contextlib.suppress(OSError, ValueError, KeyError):  # half made: no run can use it
            base = read_json(os.path.join(path, ".ready"))["python"]
            wanted = {venv_path(places, e["run"], base) for e in runs if _has(e, "requirements")}
            wanted |= {own_path(places, e["run"], base) for e in runs if _has(e, "packages")}
        verdict = (KEEP, "a run was made with it") if path in wanted else (REMOVE, "no run uses it")
        yield Item("venv", name, path, size_of(path), *verdict)


def _has(each: dict[str, Any], packages: str) -> bool:
    return bool(each["run"].get(packages))


def _programs(places: Places) -> Iterator[Item]:
    """Our own earlier versions, unless a process still runs from one."""
    own = os.path.abspath(__file__).split(".pyz")[0] + ".pyz"
    used = _command_lines()
    for name in _names(places.home):
        path = os.path.join(places.home, name)
        if not re.fullmatch(r"onbox-[0-9a-f]+\.pyz", name):
            continue
        if path == own:
            yield Item("program", name, path, os.path.getsize(path), KEEP, "in use")
        elif any(name in line for line in used):
            yield Item("program", name, path, os.path.getsize(path), KEEP, "a process runs from it")
        else:
            yield Item("program", name, path, os.path.getsize(path), REMOVE, "an older version")


def _command_lines() -> list[str]:
    """Command line and variables of every process that we may look at."""
    found = []
    for pid in filter(str.isdigit, _names("/proc")):
        for what in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{what}", "rb") as file:
                    found.append(file.read().decode("utf-8", "replace"))
            except OSError:
                continue
    return found


def _left_overs(places: Places, now: float) -> Iterator[Item]:
    """What was in the making or on its way out when somebody was killed, a day old at least."""
    for name in _names(places.runs):
        path = os.path.join(places.runs, name)
        if re.match(r"\.(new|old|seed)-", name) and now - os.lstat(path).st_mtime > DAY:
            yield Item("left-over", name, path, size_of(path), REMOVE, "nobody finished it")
    scratch = os.path.join(places.input, ".gpubox", "scratch")
    for name in _names(scratch):
        folder = os.path.join(places.runs, name)
        if ID.fullmatch(name) and read_state(folder)["state"] in ENDED:
            path = os.path.join(scratch, name)
            yield Item("left-over", name, path, size_of(path), REMOVE, "scratch of an ended run")
    for name in _names(os.path.join(places.home, "claims")):
        path = os.path.join(places.home, "claims", name)
        if not os.path.isdir(os.path.join(places.runs, name.split("@")[0])):
            yield Item("left-over", name, path, 0, REMOVE, "its run is gone")


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _remove(item: Item) -> None:
    """An image by the engine, which refuses where a container uses it; the rest from the disk."""
    if item.kind == "image":
        docker("image", "rm", item.path)
    elif os.path.isdir(item.path) and not os.path.islink(item.path):
        grave = os.path.join(os.path.dirname(item.path), f".old-{os.path.basename(item.path)}")
        shutil.rmtree(grave, ignore_errors=True)
        os.rename(item.path, grave)
        shutil.rmtree(grave, ignore_errors=True)
    else:
        os.unlink(item.path)
