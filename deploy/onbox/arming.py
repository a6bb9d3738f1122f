"""Arms the keeper: rehearses the stop, writes the rule, and has something start it and keep it up."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

from .armed import disarm_files, read_armed, write_armed, write_channels
from .child import run_program
from .keeper_status import keeper_lives, read_status
from .ledger import read_ledger
from .life import keeper_folder
from .publish import atomic_file
from .refusal import Refusal
from .rehearsal import rehearse
from .units import install_unit, starts_at_boot, user_units_last

START_SECONDS, AGAIN_SECONDS = 15.0, 5.0
ONSTART = "/root/onstart.sh"  # vast.ai runs it at each start of a pod
MARK = "# gpubox-keeper"
# The small supervisor where there is no systemd: starts the keeper again unless it was disarmed.
LOOP = 'while :; do "$1"; [ $? -eq 3 ] && exit 0; sleep 2; done'
KEPT_OUT = ("channels", "mode", "force", "restart")


def arm(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Request: the armed document (docs/formats.md) and {channels, mode, force, restart}; or only
    {same_as}, which answers {armed: False} unless exactly that is armed and alive.

    A rule that can't be carried out is refused, unless `force` says to arm it all the same.
    """
    if "same_as" in request:
        return armed_already(request["same_as"])
    problems = rehearse(request["stop"])
    if problems and not request.get("force"):
        raise Refusal(
            "StopFailed",
            "NOT armed: the stop can't be carried out: " + "; ".join(problems),
            "mend that, set boxes.NAME.stop.command, or arm with fab idle --arm --force",
        )
    armed = {key: value for key, value in request.items() if key not in KEPT_OUT}
    armed.update(
        schema=1, problems=problems, cost_base=cost_base(armed), folders=request["folders"]
    )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(keeper_folder(), "disarmed"))
    mode = request.get("mode", "auto")
    armed["mode"] = choose_mode() if mode == "auto" else mode
    write_channels(request.get("channels", []))
    write_armed(armed)
    notes = start_keeper(armed["mode"], bool(request.get("restart")))
    return {**armed_already(armed["asked"]), "problems": problems, "notes": notes}


def armed_already(asked: str) -> dict[str, Any]:
    """{armed, mode, after_reboot, version, problems} where this very rule is armed and alive."""
    armed, status = read_armed(), read_status()
    if not armed or not status or armed.get("asked") != asked or not keeper_lives(status):
        return {"armed": False}
    about = {key: armed.get(key) for key in ("mode", "problems", "provider", "stop", "rule")}
    return {
        "armed": True,
        "version": status["version"],
        "after_reboot": after_reboot(armed),
        **about,
    }


def cost_base(armed: dict[str, Any]) -> float:
    """The money cap counts from when it was set or changed; the first one from the beginning."""
    before = read_armed()
    if before is None:
        return 0.0
    if before["rule"].get("max_cost") == armed["rule"].get("max_cost"):
        return float(before.get("cost_base", 0.0))
    return sum(float(e["cost"]) for e in read_ledger(os.path.join(keeper_folder(), "ledger")))


def choose_mode() -> str:
    """`system` (a unit of the system), `user` (a unit of the user's, where it outlives the last
    session), else `detached`."""
    if not os.path.isdir("/run/systemd/system"):
        return "detached"
    if os.getuid() == 0 or run_program(["sudo", "-n", "true"], 10).code == 0:
        return "system"
    return "user" if user_units_last() else "detached"


def start_keeper(mode: str, restart: bool) -> list[str]:
    """A keeper that lives gets the new rule; it changes its version only when `restart` says so."""
    status = read_status()
    if status and keeper_lives(status) and not restart:
        os.kill(int(status["pid"]), signal.SIGHUP)
        wait_for_keeper(float(status["at"]))
        mine = os.path.basename(sys.argv[0])
        old = status["version"] != mine
        return [f"the keeper goes on with {status['version']}: fab idle --restart"] if old else []
    write_start_script()
    if status and keeper_lives(status):
        end_keeper(int(status["pid"]))
    since = time.monotonic()
    notes: list[str] = []
    if mode == "detached":
        notes = start_detached()
    else:
        install_unit(mode, start_path())
    wait_for_keeper(since)
    return notes


def start_path() -> str:
    return os.path.join(keeper_folder(), "start")


def write_start_script() -> None:
    """The unit names this file, which names the version: so the unit itself never changes, and
    systemd never has to be reloaded while a run is alive."""
    names = ("HOME", "GPUBOX_HOME", "TZ")
    sets = " ".join(f"{n}={shlex.quote(os.environ[n])}" for n in names if n in os.environ)
    words = [sys.executable, os.path.abspath(sys.argv[0]), "keeper"]
    line = " ".join(shlex.quote(each) for each in words)
    with atomic_file(start_path(), 0o700) as file:
        file.write(f"#!/bin/sh\n{sets} exec {line}\n".encode())


def start_detached() -> list[str]:
    """A small supervisor of its own session; after a reboot cron starts it where there is one."""
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        loop(), stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, cwd="/"
    )
    return note_at_reboot(loop())


def loop() -> list[str]:
    return ["/bin/sh", "-c", LOOP, "gpubox-keeper", start_path()]


def start_again() -> None:
    """Start a detached keeper that has died with its supervisor; what hinders it stands in its
    log. One that lives all the same refuses the second."""
    if os.path.exists(start_path()):
        since = time.monotonic()
        start_detached()
        with contextlib.suppress(Refusal):
            wait_for_keeper(since, AGAIN_SECONDS)


def note_at_reboot(command: list[str]) -> list[str]:
    """A line in the script that a rented pod runs at each start, where there is one; else an
    @reboot line in the user's crontab, where a cron runs."""
    if os.access(ONSTART, os.W_OK):
        return note_in_onstart(command)
    if not cron_runs():
        return []
    listed = run_program(["crontab", "-l"], 10)
    table = listed.text if listed.code == 0 else ""
    lines = [line for line in table.splitlines() if MARK not in line]
    line = " ".join(shlex.quote(word) for word in command).replace("%", "\\%")
    lines.append(f"@reboot {line} {MARK}")
    text = "\n".join(lines) + "\n"
    done = subprocess.run(["crontab", "-"], input=text.encode(), timeout=10)
    return [] if done.returncode == 0 else ["crontab refuses our @reboot line"]


def note_in_onstart(command: list[str]) -> list[str]:
    """Before the script's own lines, which may never end."""
    with open(ONSTART, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line for line in file.read().splitlines() if MARK not in line]
    line = " ".join(shlex.quote(word) for word in command)
    at = 1 if lines and lines[0].startswith("#!") else 0
    lines.insert(at, f"setsid {line} </dev/null >/dev/null 2>&1 & {MARK}")
    mode = os.stat(ONSTART).st_mode & 0o777
    try:
        with atomic_file(ONSTART, mode) as out:
            out.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
    except OSError as no:
        return [f"{ONSTART} can't be written: {no.strerror}"]
    return []


def cron_runs() -> bool:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit():
                with open(f"/proc/{name}/comm") as file:
                    if file.read().strip() in ("cron", "crond"):
                        return run_program(["sh", "-c", "command -v crontab"], 5).code == 0
    return False


def after_reboot(armed: dict[str, Any]) -> bool:
    """Will something start the keeper after a reboot?"""
    if armed.get("mode") in ("system", "user"):
        return starts_at_boot(str(armed["mode"]))
    with contextlib.suppress(OSError), open(ONSTART, errors="replace") as file:
        if MARK in file.read():
            return True
    return cron_runs() and MARK in run_program(["crontab", "-l"], 10).text


def wait_for_keeper(since: float, seconds: float = START_SECONDS) -> None:
    """Until it has looked at the box once after `since`; a Refusal with its last words if not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status = read_status()
        if status and keeper_lives(status) and float(status["at"]) > since:
            return
        time.sleep(0.05)
    words = ""
    with contextlib.suppress(OSError):
        with open(os.path.join(keeper_folder(), "log")) as file:
            words = file.read()[-300:].strip().splitlines()[-1]
    raise Refusal(
        "StopFailed",
        f"NOT armed: the keeper did not come up within {seconds:.0f} s: {words}",
        "fab doctor; the keeper's log is ~/.gpubox/keeper/log",
    )


def end_keeper(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.05)


def disarm(request: dict[str, Any], wire: Any) -> dict[str, Any]:
    """End the keeper and forget the rule. Answer: {was: armed or not}."""
    status = read_status()
    with open(os.path.join(keeper_folder(), "disarmed"), "w"):
        pass
    disarm_files()
    lives = keeper_lives(status)
    if status and lives:
        with contextlib.suppress(OSError):
            os.kill(int(status["pid"]), signal.SIGHUP)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and os.path.exists("/proc/{}".format(status["pid"])):
            time.sleep(0.05)
    return {"was": lives}
