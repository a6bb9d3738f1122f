"""`fab tensorboard` and `fab notebook`: from the run's own image, in the laptop's browser."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.browser import can_open, door, open_file
from deploy.effects.held import Held, held
from deploy.effects.link import Link
from deploy.effects.settings import root
from deploy.effects.tunnel import Tunnel
from deploy.plan.deploy import ALL_IMAGES
from deploy.verbs.bring import bring_ours
from deploy.verbs.desk import Desk
from deploy.verbs.forward import only_box


def tensorboard(desk: Desk, run: str = "", local: int = 0, browser: bool = True) -> Any:
    """All runs of the box, or one of them."""
    return _view(desk, "tensorboard", run, local, browser, {})


def notebook(desk: Desk, run: str = "", local: int = 0, browser: bool = True) -> Any:
    """A notebook with /input and /output as a run has them; the token is made here, for once."""
    return _view(desk, "notebook", run, local, browser, {"token": secrets.token_urlsafe(24)})


def _view(
    desk: Desk, kind: str, run: str, local: int, browser: bool, secret: dict[str, str]
) -> Any:
    name = only_box(desk, kind)
    if desk.dry_run:
        desk.show.say(f"would start {kind} on {name} and open it here")
        return {"box": name, "kind": kind}
    settings = desk.box(name)
    request = {
        "kind": kind,
        "run": run,
        "runner": settings.runner,
        "python": settings.python,
        "device": "cpu",
        "compose": (root() / "compose.yaml").read_text(encoding="utf-8"),
        "requirements": (root() / "images" / "requirements-cpu.lock").read_text(encoding="utf-8"),
        **secret,
    }
    with desk.open(name) as box:
        if kind == "notebook" and settings.runner != "process":
            request["image"] = notebook_image(desk, box, run)
        desk.show.step(f"starting {kind} on {name}")
        with held(box, "view", desk.show.step, **request) as server:
            with contextlib.suppress(KeyboardInterrupt):  # how it ends
                _stay(desk, box.link, server, local, secret.get("token", ""), browser)
    desk.show.done(f"{kind} on {name} is stopped")
    return {"box": name, "kind": kind}


def notebook_image(desk: Desk, box: Agent, run: str) -> str:
    """The id of our image with JupyterLab on the box, brought there; "" where runs are processes."""
    found = box.call("prospect", repeatable=True, images=[ALL_IMAGES["notebook"]])
    shown = [each for each in found["runs"] if run in ("", "last", each["id"])]
    runner = ((shown or [{}])[-1].get("run") or {}).get("runner", "")
    if not found["engine"]["answers"] or runner == "process":
        return ""
    return str(bring_ours(desk, box, found, "notebook")["id"])


def _stay(desk: Desk, link: Link, server: Held, local: int, token: str, browser: bool) -> None:
    with Tunnel(link, server.port, local, desk.show.warn) as tunnel:
        with _shown(desk, f"http://127.0.0.1:{tunnel.port}/", token, browser):
            tunnel.wait(server.ended.is_set)


@contextlib.contextmanager
def _shown(desk: Desk, url: str, token: str, browser: bool) -> Iterator[None]:
    """Open it; where there is no browser, the address is said: with the token on a terminal only."""
    full = f"{url}?token={token}" if token else url
    with door(full) as page:
        opened = browser and can_open() and open_file(page)
        if token and not opened and not sys.stdout.isatty():
            desk.show.say(f"{url} with the token in {page}; Ctrl-C ends it")
        else:
            desk.show.say(f"{url if opened else full}; Ctrl-C ends it")
        yield
