"""The keeper's systemd unit: the system's where we may, else the user's with linger."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from typing import Sequence

from .child import Ended, run_program
from .refusal import Refusal

UNIT = """\
[Unit]
Description=gpubox keeper: reminds about and stops this box when it does nothing
After=network.target docker.service
StartLimitIntervalSec=0

[Service]
{user}ExecStart={start}
Restart=always
RestartSec=2
RestartPreventExitStatus=3
# Runs that the keeper starts are not its own: they stay when it is restarted.
KillMode=process
{more}
[Install]
WantedBy={target}
"""


def unit_name() -> str:
    return "gpubox-keeper-{}.service".format(re.sub(r"[^A-Za-z0-9_-]", "-", getpass.getuser()))


def unit_path(mode: str) -> str:
    if mode == "system":
        return "/etc/systemd/system/" + unit_name()
    return os.path.expanduser("~/.config/systemd/user/" + unit_name())


def unit_text(mode: str, start: str) -> str:
    quoted = '"' + start.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
    if mode == "system":
        more = "OOMScoreAdjust=-900\n"
        return UNIT.format(
            user=f"User={getpass.getuser()}\n", start=quoted, more=more, target="multi-user.target"
        )
    return UNIT.format(user="", start=quoted, more="", target="default.target")


def systemctl(mode: str, *words: str) -> Ended:
    if mode == "system":
        return run_program([*as_root(), "systemctl", *words], 60)
    runtime = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    return run_program(["systemctl", "--user", *words], 60, runtime)


def as_root() -> list[str]:
    return [] if os.getuid() == 0 else ["sudo", "-n"]


def install_unit(mode: str, start: str) -> None:
    """Write the unit where it is not as it should be, enable it, start it.

    systemd is reloaded only if it holds another text of this unit: a reload takes GPUs away from
    running containers, and a unit that it has never read needs none.
    """
    path, text = unit_path(mode), unit_text(mode, start)
    changed = read_text(path) not in ("", text)
    if read_text(path) != text:
        write_text(mode, path, text)
    if changed:
        systemctl(mode, "daemon-reload")
    systemctl(mode, "enable", "--no-reload", unit_name())
    done = systemctl(mode, "restart", unit_name())
    if done.code != 0:
        raise Refusal("StopFailed", f"NOT armed: systemd says: {done.text[-200:]}", "fab doctor")


def read_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def write_text(mode: str, path: str, text: str) -> None:
    if mode == "user":
        os.makedirs(os.path.dirname(path), exist_ok=True)
    command: Sequence[str] = [*(as_root() if mode == "system" else []), "tee", path]
    done = subprocess.run(
        command, input=text.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=20
    )
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip()
        raise Refusal("StopFailed", f"NOT armed: {path} can't be written: {why}", "fab doctor")


def user_units_last() -> bool:
    """Whether this user's manager answers and lingers: without linger its units end with the last
    session, a keeper with them. Some systems let a user switch that on, most don't."""
    if systemctl("user", "show-environment").code != 0:
        return False
    if not lingers():
        run_program(["loginctl", "--no-ask-password", "enable-linger"], 20)
    return lingers()


def lingers() -> bool:
    return os.path.exists("/var/lib/systemd/linger/" + getpass.getuser())


def starts_at_boot(mode: str) -> bool:
    enabled = systemctl(mode, "is-enabled", unit_name()).text.startswith("enabled")
    return enabled and (mode == "system" or lingers())
