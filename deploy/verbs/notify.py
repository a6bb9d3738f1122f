"""Brings Apprise's bundle to a box that has a channel which needs it; nothing where it is there."""

from __future__ import annotations

from deploy.effects.agent import Agent
from deploy.effects.link import Done, finish
from deploy.effects.notify_bundle import notify_bundle
from deploy.plan.quantities import show_size
from deploy.verbs.desk import Desk


def ensure_notify_bundle(desk: Desk, box: Agent) -> None:
    bundle = notify_bundle()
    if box.call("notify_ready", name=bundle.name)["there"]:
        return
    desk.show.step(f"{box.link.name}: sending Apprise, {show_size(len(bundle.content))}")
    stream = box.open("notify_install", name=bundle.name)
    try:
        done: Done = finish(stream, bundle.content, None, box.link.name)
    finally:
        stream.close()
    box.answer("notify_install", done)
