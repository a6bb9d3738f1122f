"""`fab data`: the data sets on a box and their versions; pin, unpin, make current, remove."""

from __future__ import annotations

from typing import Any

from deploy.effects.agent import Agent
from deploy.errors import UsageError
from deploy.plan.quantities import show_size, show_time
from deploy.verbs.desk import Desk


def data(desk: Desk, name: str, version: str, do: str) -> list[dict[str, Any]]:
    """`do` is "", pin, unpin, use or remove."""
    if do and not name:
        raise UsageError(f"--{do} of which data set?", "fab data --name NAME …")
    if do in ("pin", "unpin", "use") and not version:
        raise UsageError(f"--{do} of which version?", "fab data --name NAME --version ID …")
    results = []
    for host in desk.hosts:
        with desk.open(host) as box:
            results.append({"box": host, **_do(desk, box, name, version, do)})
    return results


def _do(desk: Desk, box: Agent, name: str, version: str, do: str) -> dict[str, Any]:
    if not do:
        return _list(desk, box, name)
    what = f"{name} {version[:12]}".strip()
    if do == "check":
        return {"name": name, **_check(desk, box, name, version)}
    if desk.dry_run:
        desk.show.say(f"would {do} {what}")
        return {"name": name, "done": ""}
    if do == "check":
        return {"name": name, **_check(desk, box, name, version)}
    if do in ("pin", "unpin"):
        answer = box.call("data_pin", name=name, version=version, pinned=do == "pin")
    elif do == "use":
        answer = box.call("activate", name=name, version=version)
    else:
        answer = box.call("data_remove", name=name, version=version)
        what += f", {show_size(answer['freed'])} freed"
    desk.show.done(f"{do}: {what}")
    return {"name": name, "done": do, **answer}


def _check(desk: Desk, box: Agent, name: str, version: str) -> dict[str, Any]:
    answer = box.call("data_check", name=name, version=version)
    if answer["damaged"]:
        desk.show.warn(
            f"{name}: {len(answer['damaged'])} damaged packs or files; fab upload mends it"
        )
    else:
        desk.show.done(f"{name}: every checksum on the data disk is right")
    return answer


def _list(desk: Desk, box: Agent, name: str) -> dict[str, Any]:
    found = box.call("data_list")
    sets = [each for each in found["sets"] if name in ("", each["name"])]
    now = max((v["created"] for each in sets for v in each["versions"]), default=0.0)
    rows = [_row(each, version, now) for each in sets for version in each["versions"]]
    desk.show.table(["set", "version", "uploaded", "files", "size", ""], rows)
    for each in sets:
        if each["incoming"]:
            desk.show.note(f"{each['name']}: {show_size(each['incoming'])} of an unfinished upload")
    for other in found["foreign"] if not name else []:
        desk.show.note(f"{found['data']}/{other}: a folder without manifest; fab stage takes it")
    return {"data": found["data"], "sets": sets, "foreign": found["foreign"]}


def _row(each: dict[str, Any], version: dict[str, Any], now: float) -> tuple[object, ...]:
    marks = [word for word in ("current", "pinned", "used") if version[word]]
    moment = show_time(version["created"], now)
    size = show_size(version["bytes"])
    return (each["name"], version["id"][:12], moment, version["files"], size, ", ".join(marks))
