"""PURE: what makes a box ready, step by step and each with its reason; what is right already stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from deploy.plan.doctor import MIN_COMPOSE, numbers
from deploy.plan.packages import can_install, engine_packages, extra_source
from deploy.plan.quantities import show_size

Facts = Mapping[str, Any]
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a", "apt-get", "-q", "-y")
APT_OPTIONS = ("-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Options::=--force-confold")
RESTARTS = ("engine", "toolkit")  # steps that restart an engine which is there


class Command(NamedTuple):
    """One program with its arguments; no shell ever sees it."""

    argv: tuple[str, ...]
    root: bool = True
    stdin: str = ""


class Step(NamedTuple):
    """`commands` to run, or `by_hand` what only a person can do, or neither: it is right already."""

    name: str
    why: str
    commands: tuple[Command, ...] = ()
    by_hand: str = ""
    new_login: bool = False  # the change counts only for sessions that begin after it


def plan(facts: Facts, box: str) -> list[Step]:
    """Every step in order. A box that is itself a container gets a Python and folders only."""
    pod = facts["container"] and not facts["engine"]["present"] and not facts["systemd"]
    wanted: list[Callable[[Facts], Iterator[Step]]] = (
        [venv, folders]
        if pod
        else [first_boot, engine, running, group, driver, toolkit, folders, disks]
    )
    first = [Step("kind", "the box is itself a container: no engine in it")] if pod else []
    return first + [may_be_done(step, facts, box) for each in wanted for step in each(facts)]


def may_be_done(step: Step, facts: Facts, box: str) -> Step:
    """A step that needs root becomes work by hand where we can't be root."""
    able = facts["login"].get("root") or facts["login"].get("sudo")
    at_work = facts["engine"].get("running", 0)
    if at_work and step.name in RESTARTS and step.commands:
        hint = f"the engine would restart under {at_work} running containers: wait, then run this again"
        return step._replace(commands=(), by_hand=hint)
    if able or not any(command.root for command in step.commands):
        return step
    words = "; ".join(" ".join(command.argv) for command in step.commands)
    return step._replace(commands=(), by_hand=f"as root on {box}: {words}")


def apt_install(*packages: str) -> tuple[Command, ...]:
    """Refresh the lists, then install; nothing that is there already is upgraded for it."""
    # by itself an update that reaches nothing ends with 0
    update = Command((*APT, *APT_OPTIONS, "-o", "APT::Update::Error-Mode=any", "update"))
    return update, Command((*APT, *APT_OPTIONS, "install", "--no-install-recommends", *packages))


def through(command: Command, proxy: str) -> Command:
    """The same apt command by way of a proxy."""
    if not proxy or "apt-get" not in command.argv:
        return command
    at = command.argv.index("apt-get") + 1
    options = ("-o", f"Acquire::http::Proxy={proxy}", "-o", f"Acquire::https::Proxy={proxy}")
    return command._replace(argv=(*command.argv[:at], *options, *command.argv[at:]))


def write_file(path: str, text: str) -> Command:
    return Command(("install", "-m", "0644", "/dev/stdin", path), stdin=text)


def first_boot(facts: Facts) -> Iterator[Step]:
    if "running" in facts["cloud_init"]:
        wait = Command(("cloud-init", "status", "--wait"), root=False)
        yield Step("first boot", "cloud-init still sets the machine up", (wait,))
    if facts["locks"]:
        yield Step("apt", f"waits for {', '.join(facts['locks'])} before anything is installed")


def engine(facts: Facts) -> Iterator[Step]:
    found, system = facts["engine"], facts["system"]
    compose = numbers(found.get("compose", ""))
    if found["present"] and found["answers"] and compose >= MIN_COMPOSE:
        yield Step("engine", f"Docker {found['version']} with compose {found['compose']} is there")
        return
    if found["present"] and not found["answers"] and not needs_packages(facts):
        return  # installed, and the next steps start it or let us in
    lacks = "no engine" if not found["present"] else "compose 2.20 or newer is missing"
    if not facts["apt"] or not can_install(system["id"], system["version"], facts["apt_uris"]):
        yield Step("engine", lacks, by_hand=by_hand(system["name"]))
        return
    source = extra_source(system["id"], system["version"], facts["apt_uris"])
    files = tuple(write_file(path, text) for path, text in source.files)
    packages = engine_packages(system["id"], system["version"], facts["packages"])
    chosen = (f"{each}/{source.release}" if source.release else each for each in packages)
    yield Step("engine", lacks, files + apt_install(*chosen, "zstd"))


def needs_packages(facts: Facts) -> bool:
    """An engine that does not answer can't tell its compose: its packages can."""
    return not (facts["packages"]["docker-ce"] or facts["packages"]["docker.io"])


def by_hand(system: str) -> str:
    least = ".".join(map(str, MIN_COMPOSE))
    return (
        f"{system or 'this system'} is not one that we install on: install Docker with Compose "
        f"{least} or newer as its maker says, start it, then run the same command again"
    )


def running(facts: Facts) -> Iterator[Step]:
    found = facts["engine"]
    if found["answers"] or found["group"] == "after a new login":
        return
    if facts["systemd"]:
        start = Command(("systemctl", "enable", "--now", "docker"))
        yield Step("start", "the engine starts now and at every boot", (start,))
    elif found["present"]:
        yield Step("start", found["why"], by_hand="start dockerd; this box has no systemd")


def group(facts: Facts) -> Iterator[Step]:
    user, state = facts["login"]["user"], facts["engine"]["group"]
    if facts["login"]["root"] or facts["engine"]["answers"] or state == "member":
        return
    if state == "after a new login":
        yield Step("group", f"{user} is in the group docker from the next login on", new_login=True)
        return
    add = Command(("usermod", "-aG", "docker", user))
    yield Step("group", f"{user} may not use the engine", (add,), new_login=True)


def driver(facts: Facts) -> Iterator[Step]:
    found = facts["gpus"]
    if found["cards"] or not found["present"]:
        return
    names = {"debian": "nvidia-driver (non-free)", "ubuntu": "ubuntu-drivers install --gpgpu"}
    what = names.get(facts["system"]["id"], "NVIDIA's driver")
    hint = f"install it ({what}), or take a system image that has it; then reboot"
    yield Step(
        "GPU driver", f"{found['on_bus'] or 'a'} GPU on the bus, {found['why']}", by_hand=hint
    )


def toolkit(facts: Facts) -> Iterator[Step]:
    if not facts["gpus"]["cards"]:
        return
    if facts["engine"]["gives_gpu"]:
        yield Step("toolkit", "a container gets the GPUs (tried)")
        return
    name = "nvidia-container-toolkit"
    there = facts["packages"][name]
    if not there and not facts["candidate"][name]:
        hint = "add NVIDIA's package source (Installing the NVIDIA Container Toolkit), then run this again"
        yield Step("toolkit", "no package source of this box has it", by_hand=hint)
        return
    setup = (
        Command(("nvidia-ctk", "runtime", "configure", "--runtime=docker")),
        Command(("systemctl", "restart", "docker")),
    )
    yield Step("toolkit", "containers get no GPU", (() if there else apt_install(name)) + setup)


def venv(facts: Facts) -> Iterator[Step]:
    if facts["venv"]:
        yield Step("Python", "it can make virtual environments")
    elif facts["apt"]:
        yield Step("Python", "it can't make virtual environments", apt_install("python3-venv"))
    else:
        yield Step("Python", "it can't make virtual environments", by_hand="install Python's venv")


def folders(facts: Facts) -> Iterator[Step]:
    user, own = facts["login"]["user"], facts["login"]["group"]
    for name, found in facts["folders"].items():
        path = found["path"]
        if not found["there"]:
            make = Command(("install", "-d", "-m", "0700", "-o", user, "-g", own, path))
            yield Step(name, f"{path} is not there", (make,))
        elif found["writable"]:
            yield Step(name, f"{path} is {found['owner']}'s and can be written")
        elif found["empty"]:
            take = Command(("chown", f"{user}:{own}", path))
            yield Step(name, f"{path} is empty and {found['owner']}'s", (take,))
        else:
            hint = f"let {user} write there, or set boxes.NAME.{name} to another folder"
            yield Step(name, f"{path} is {found['owner']}'s and not empty", by_hand=hint)


def disks(facts: Facts) -> Iterator[Step]:
    """A disk that nobody uses may be the one that was paid for; formatting it is never ours."""
    for disk in facts["unmounted"]:
        what = disk["fstype"] or "no file system"
        hint = "if it is meant for /data or /input, mount it; it is never formatted from here"
        yield Step("disk", f"{disk['name']}: {show_size(int(disk['size']))}, {what}", by_hand=hint)
