"""PURE: whether several boxes can train as one, by which addresses, and each one's part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.errors import BoxUnfit, UsageError
from deploy.plan.deploy import ALIVE

PORT = 23456


@dataclass(frozen=True)
class Member:
    """What one box brings into a training of several: it must be the same for all of them."""

    box: str
    runner: str
    device: str
    version: str  # of the data set
    image: str
    fingerprint: str  # of program, command, packages and variables


def worker_names(asked: str, configured: Sequence[str]) -> list[str]:
    """The boxes of one training, the chief first; [] where one box trains alone."""
    names = [each.strip() for each in asked.split(",")] if asked else list(configured)
    names = [each for each in names if each]
    if len(names) != len(set(names)):
        raise UsageError(f"--workers {','.join(names)}: a box is named twice", "each box once")
    if len(names) == 1:
        raise UsageError(f"--workers {names[0]}: one worker is no group", f"--host {names[0]}")
    return names


def check_alike(members: Sequence[Member]) -> None:
    """BoxUnfit that names what differs, and where."""
    words = {
        "runner": "run differently",
        "device": "train on different devices",
        "version": "have different versions of the data set",
        "image": "have different images",
        "fingerprint": "would start different programs",
    }
    for key, said in words.items():
        found = {each.box: str(getattr(each, key))[:19] for each in members}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{box}: {value or 'none'}" for box, value in found.items())
            raise BoxUnfit(f"the workers {said}: {listed}", "nothing was started; make them alike")


def candidates(found: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Each box's private addresses; BoxUnfit for a box that has only public ones.

    Workers speak gRPC without encryption or a password: whoever reaches the port can read the
    gradients and run operations.
    """
    for box, each in found.items():
        if not each["private"]:
            raise BoxUnfit(
                f"{box} has no private address (only {', '.join(each['public']) or 'none'}), and "
                "what workers tell each other is not encrypted",
                "put the boxes into one private network of the provider, or one tunnel "
                "(WireGuard, Tailscale)",
            )
    return {box: list(each["private"]) for box, each in found.items()}


def choose_addresses(
    offered: Mapping[str, Sequence[str]],
    reached: Mapping[str, Mapping[str, Sequence[str]]],
    port: int,
) -> dict[str, str]:
    """For each box the first of its addresses by which every other one reaches it.

    reached  caller → box → the addresses of it that answered
    """
    chosen = {}
    for box, own in offered.items():
        others = [caller for caller in offered if caller != box]
        good = [a for a in own if all(a in reached[caller].get(box, ()) for caller in others)]
        if not good:
            deaf = [c for c in others if not set(own) & set(reached[c].get(box, ()))] or others
            raise BoxUnfit(
                f"{box} can't be reached from {', '.join(deaf)} at port {port} ({', '.join(own)})",
                f"open port {port} between the boxes; nothing was started",
            )
        chosen[box] = good[0]
    return chosen


def member_id(chief: str, index: int) -> str:
    """Run ids of a group: the chief's own, and `…-cnn-w1-3f9a` for worker 1: boxes may share /data."""
    if index == 0:
        return chief
    head, salt = chief.rsplit("-", 1)
    return f"{head[:13]}{head[13:][:26]}-w{index}-{salt}"


def parts(
    names: Sequence[str], addresses: Mapping[str, str], port: int, chief: str
) -> list[dict[str, Any]]:
    """What each box's run.json says of its part: `worker` {index, hosts, runs}."""
    hosts = [f"{addresses[name]}:{port}" for name in names]
    runs = {name: member_id(chief, index) for index, name in enumerate(names)}
    return [{"index": index, "hosts": hosts, "runs": runs} for index in range(len(names))]


def all_run(known: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether every worker of a group is under way or waits for a GPU; not where its box was started
    anew and nobody has looked after it yet.

    known  box → the summary of its run; {} where it is not there
    """
    return all(
        each and each["state"]["state"] in ALIVE and (each["supervised"] or waits(each))
        for each in known.values()
    )


def waits(known: Mapping[str, Any]) -> bool:
    return known["state"]["state"] in ("created", "queued")


def patience(known: Mapping[str, Any]) -> float | None:
    """Seconds that a worker of a broken group has to end; None: its own grace, as it has made steps
    since its start. One that waits for the others inside TensorFlow has nothing to save, and would
    not hear of it."""
    state = known["state"]
    stepped = state.get("first_step_at", 0) >= state.get("attempt_at", 1)
    return None if stepped else 5.0
