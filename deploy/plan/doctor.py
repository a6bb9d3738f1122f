"""PURE: what `fab doctor` makes of a box's facts: checks with value, verdict and remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from deploy.plan import doctor_gpu
from deploy.plan.check import Check, Verdict
from deploy.plan.config import Box
from deploy.plan.quantities import show_duration, show_size

Facts = Mapping[str, Any]

MIN_COMPOSE = (2, 20)  # compose.yaml: create_host_path, GPU reservations, several -f
MIN_FREE = 20 << 30  # an image, unpacked, beside its layers
MIN_MEMORY = 4 << 30
MIN_INODES = 100_000
CLOCK_SECONDS = 30.0
SHELLS = ("sh", "bash", "dash", "zsh", "fish", "csh", "tcsh", "ksh", "ash")


class Way(NamedTuple):
    """How the laptop reached the box: what only this side can know."""

    name: str
    route: str  # user@host:port, and through which jump hosts
    seconds: float  # to connect
    bulk: str  # what carries bulk data
    host_key: str
    noise: bytes  # what a login prints before anything is asked
    clock_offset: float  # box minus laptop, seconds


def checks(facts: Facts, way: Way, box: Box) -> list[Check]:
    """All checks of a box that could be reached, in the order of the table."""
    about_link = [ssh(way), Check("host key", way.host_key), noise(way)]
    plain: list[Callable[[Facts, Way, Box], Check]] = [
        shell, python, sudo, clock, cpu, memory, data, fast_disk, engine, engine_disk, compose, group
    ]  # fmt: skip
    about_box = [each(facts, way, box) for each in plain]
    about_gpu = doctor_gpu.checks(facts, way.name, box.device)
    rest = [each(facts, way, box) for each in (shm, kind_of_box, sources)]
    return about_link + about_box + about_gpu + rest


def unknown(name: str, value: Any) -> Check | None:
    """The check of a probe that could not tell."""
    if isinstance(value, Mapping) and "unknown" in value:
        return Check(name, str(value["unknown"]), "unknown", "look by hand: fab shell")
    return None


def ssh(way: Way) -> Check:
    value = f"{way.route}, {way.seconds:.1f} s; bulk data by {way.bulk}"
    if way.seconds > 5:
        return Check("SSH", value, "warn", "slow to log in: UseDNS no in the box's sshd_config?")
    return Check("SSH", value)


def noise(way: Way) -> Check:
    if not way.noise:
        return Check("login", "quiet")
    said = way.noise.decode(errors="replace").strip().splitlines() or ["blank lines"]
    return Check(
        "login", f"prints {said[0][:40]!r} on stdout", "note", "harmless here; scp and rsync break"
    )


def shell(facts: Facts, way: Way, box: Box) -> Check:
    path = facts["login"].get("shell", "")
    known = path.rsplit("/", 1)[-1] in SHELLS
    return Check("shell", path or "unknown", "ok" if known else "note")


def python(facts: Facts, way: Way, box: Box) -> Check:
    found = facts["python"]
    return Check("Python", f"{found['version']} ({found['path']})")


def sudo(facts: Facts, way: Way, box: Box) -> Check:
    if facts["login"].get("root"):
        return Check("root", "logged in as root")
    if facts["login"].get("sudo"):
        return Check("root", "by sudo, without a password")
    remedy = "nothing can be installed and the box can't be switched off from here: ask its owner"
    return Check("root", "sudo needs a password, or is not there", "warn", remedy)


def clock(facts: Facts, way: Way, box: Box) -> Check:
    off = way.clock_offset
    if abs(off) <= CLOCK_SECONDS:
        return Check("clock", "right")
    side = "ahead of" if off > 0 else "behind"
    remedy = "timedatectl set-ntp true (on the box, or here)"
    return Check("clock", f"{show_duration(abs(off))} {side} this machine", "warn", remedy)


def cpu(facts: Facts, way: Way, box: Box) -> Check:
    return Check("CPU", f"{facts['cpus']} cores, {facts['system']['machine']}")


def memory(facts: Facts, way: Way, box: Box) -> Check:
    limit = facts["memory_limit"] if isinstance(facts["memory_limit"], int) else 0
    size = min(facts["memory"], limit or facts["memory"])
    value = show_size(size) + (" (the container's limit)" if 0 < limit < facts["memory"] else "")
    if size < MIN_MEMORY:
        return Check(
            "memory", value, "warn", "TensorFlow alone takes 1 to 2 GiB; take a larger box"
        )
    return Check("memory", value)


def data(facts: Facts, way: Way, box: Box) -> Check:
    return _disk("data", facts["data_disk"], facts["places"]["data"], way.name)


def fast_disk(facts: Facts, way: Way, box: Box) -> Check:
    check = _disk("input", facts["input_disk"], facts["places"]["input"], way.name)
    if check.verdict == "ok" and facts["input_disk"]["network"]:
        remedy = f"it should be a local disk: set boxes.{way.name}.input"
        return check._replace(verdict="warn", remedy=remedy)
    same = facts["places"]["input"]["device"] == facts["places"]["data"]["device"]
    if check.verdict == "ok" and same:
        return check._replace(
            value=check.value + "; the same disk as data",
            verdict="note",
            remedy="no copy is needed",
        )
    return check


def _disk(name: str, disk: Facts, place: Facts, box: str) -> Check:
    if no := unknown(name, disk):
        return no
    where = "network" if disk["network"] else "local"
    value = (
        f"{disk['path']}: {where} ({disk['type']}), {show_size(place['free'])} free, writes "
        f"{show_size(disk['write_rate'])}/s, {disk['file_seconds'] * 1000:.1f} ms a file"
    )
    if place["free"] < MIN_FREE:
        return Check(name, value, "warn", f"little room: fab prune --host {box}", "NoSpace")
    if place["total_inodes"] and place["free_inodes"] < MIN_INODES:
        value += f", {place['free_inodes']} inodes free"
        return Check(name, value, "warn", "too few inodes: delete small files there", "NoSpace")
    return Check(name, value)


def engine(facts: Facts, way: Way, box: Box) -> Check:
    found = facts["engine"]
    if no := unknown("engine", found):
        return no
    if found["answers"]:
        return Check("engine", f"Docker {found['version']}")
    remedy = f"fab bootstrap --host {way.name}"
    if facts["container"] or box.runner == "process":
        return Check("engine", found["why"], "note", "runs are started as processes here")
    if found["present"]:
        remedy = "sudo systemctl start docker, or " + remedy
    return Check("engine", found["why"], "bad", remedy, "EngineError")


def engine_disk(facts: Facts, way: Way, box: Box) -> Check:
    disk = facts["engine"].get("disk")
    if not disk:
        return Check("engine's disk", "–", "note")
    value = f"{disk['path']}: {show_size(disk['free'])} free"
    if disk["free"] < MIN_FREE:
        return Check("engine's disk", value, "bad", "docker system prune (on the box)", "NoSpace")
    return Check("engine's disk", value)


def compose(facts: Facts, way: Way, box: Box) -> Check:
    version = facts["engine"].get("compose", "")
    if not facts["engine"].get("answers"):
        return Check("compose", "–", "note")
    if numbers(version) < MIN_COMPOSE:
        least = ".".join(map(str, MIN_COMPOSE))
        value = f"{version} is too old" if version else "no docker compose (1.x is too old)"
        remedy = f"{least} or newer is needed: fab bootstrap --host {way.name}"
        return Check("compose", value, "bad", remedy, "EngineError")
    return Check("compose", version)


def group(facts: Facts, way: Way, box: Box) -> Check:
    state = facts["engine"].get("group", "none")
    if state in ("member", "none") or not facts["engine"].get("present"):
        return Check("docker group", "member" if state == "member" else "–")
    user = facts["login"].get("user", "USER")
    if state == "no":
        remedy = f"sudo usermod -aG docker {user} (that is as good as root)"
        verdict: Verdict = "ok" if facts["engine"].get("answers") else "bad"
        return Check("docker group", "not a member", verdict, remedy, "EngineError")
    return Check(
        "docker group", state, "warn", "log in again: close any shared connection (ssh -O exit)"
    )


def shm(facts: Facts, way: Way, box: Box) -> Check:
    if no := unknown("shm", facts["shm"]):
        return no
    if facts["container"] and facts["shm"] < 1 << 30:
        remedy = "data loaders with many workers fail: ask for more when you rent it"
        return Check("shm", show_size(facts["shm"]), "note", remedy)
    return Check("shm", show_size(facts["shm"]))


def kind_of_box(facts: Facts, way: Way, box: Box) -> Check:
    if facts["container"] and not facts["engine"].get("answers"):
        return Check("kind", "the box is itself a container: runs are processes", "note")
    return Check("kind", "a container with an engine" if facts["container"] else "a machine")


def sources(facts: Facts, way: Way, box: Box) -> Check:
    if no := unknown("package sources", facts["reach"]):
        return no
    every = {url: why for group in facts["reach"].values() for url, why in group.items()}
    silent = {url: why for url, why in every.items() if why}
    if not silent:
        return Check("package sources", f"{len(every)} answer" if every else "none set up", "ok")
    url, why = next(iter(silent.items()))
    remedy = f"fab bootstrap --host {way.name} takes its packages through this machine"
    return Check("package sources", f"{url}: {why}", "warn", remedy)


def numbers(version: str) -> tuple[int, ...]:
    """`2.26.1-4` → (2, 26, 1); () where there is no number."""
    parts = version.lstrip("v").split("-")[0].split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
