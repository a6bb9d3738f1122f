"""`fab forward`: a port of the box on this machine, for as long as the command runs."""

from __future__ import annotations

from typing import Any

from deploy.effects.tunnel import Tunnel
from deploy.errors import UsageError
from deploy.verbs.desk import Desk


def forward(desk: Desk, port: int, local: int = 0) -> list[dict[str, Any]]:
    """Carry 127.0.0.1:`local` here to 127.0.0.1:`port` on the box until Ctrl-C or a lost link."""
    name = only_box(desk, "forward")
    if not port:
        raise UsageError(
            "which port of the box?",
            f"such as 8080, a web server's: fab forward 8080 --host {name}",
        )
    check_port(port, "PORT")
    if local:
        check_port(local, "--local")
    ends = {"box": name, "port": port, "local": local or port}
    if desk.dry_run:
        desk.show.say(f"would open 127.0.0.1:{local or port} here for port {port} of {name}")
        return [ends]
    with desk.open(name) as box, Tunnel(box.link, port, local, desk.show.warn) as tunnel:
        ends["local"] = tunnel.port
        desk.show.say(f"http://127.0.0.1:{tunnel.port} is port {port} of {name}; Ctrl-C ends it")
        until_interrupted(tunnel)
    return [ends]


def until_interrupted(tunnel: Tunnel) -> None:
    """Ctrl-C is how such a command ends, so it is no error; a lost link is one."""
    try:
        tunnel.wait()
    except KeyboardInterrupt:
        return


def only_box(desk: Desk, verb: str) -> str:
    """The one box that a verb works on; UsageError where several were named."""
    if len(desk.hosts) != 1:
        raise UsageError(f"{verb} works on one box at a time", f"fab {verb} --host {desk.hosts[0]}")
    return desk.hosts[0]


def check_port(port: int, what: str) -> None:
    if not 1 <= port <= 65535:
        raise UsageError(f"{what}: expected a port between 1 and 65535, got {port}", "")
