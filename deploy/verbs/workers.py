"""`fab deploy --workers a,b`: several boxes train one model; all of them start, or none does."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from deploy.effects.agent import Agent
from deploy.effects.held import held
from deploy.errors import KitError, RunFailed
from deploy.plan.deploy import choose_start, choose_way
from deploy.plan.run import full_command, run_id, slug_of
from deploy.plan.workers import (
    PORT,
    Member,
    all_run,
    candidates,
    check_alike,
    choose_addresses,
    member_id,
    parts,
    patience,
)
from deploy.verbs.deploy import arm, bring_data, bring_image, look
from deploy.verbs.desk import Desk
from deploy.verbs.launch import conclude, plan_launch, submit, watched
from deploy.verbs.unlock import deploying, release_with_next

Boxes = dict[str, Agent]
TOGETHER = "the kit, to start all workers together"


def deploy_workers(
    desk: Desk,
    names: list[str],
    data: str,
    args: str,
    gpus: str,
    device: str,
    new: bool,
    port: int = PORT,
) -> list[dict[str, Any]]:
    """Make all boxes alike, see that they reach each other, then start one run on each.

    The first box is the chief: it alone writes checkpoints and results. Returns one report a box.
    """
    with ExitStack() as stack:
        boxes = {name: stack.enter_context(desk.open(name)) for name in names}
        for name in [] if desk.dry_run else sorted(names):  # in one order, so that two can't wait
            stack.enter_context(deploying(boxes[name]))
        salt, command = secrets.token_hex(2), full_command(desk.config.run, args)
        chief = run_id(time.time(), slug_of(command), salt)
        requests, found = {}, {}
        for index, (name, box) in enumerate(boxes.items()):
            run = member_id(chief, index)
            requests[name], found[name] = prepare(desk, name, box, data, args, gpus, device, run)
        own = bool(desk.config.run.image)
        check_alike([member(name, each, own) for name, each in requests.items()])
        old = choose_start_of_all(requests, found, new)
        if old:
            return go_on(desk, boxes, old, summaries(found, old), port)
        hosts = meet(desk, boxes, port)
        for name, part in zip(names, parts(names, hosts, port, chief), strict=True):
            requests[name]["worker"] = part
        return start_all(desk, boxes, requests)


def prepare(
    desk: Desk, name: str, box: Agent, data: str, args: str, gpus: str, device: str, run: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arm, upload, bring the image: the launch request of one box, and the facts about it."""
    settings = desk.box(name)
    found = look(desk, name, box)
    way = choose_way(name, settings, desk.config.run, found, device)
    desk.show.step(f"{name}: runner {way.runner}, device {way.device} ({way.why})")
    arm(desk, name, box, settings)
    _, dataset = bring_data(desk, box, data)
    image = bring_image(desk, box, settings, way, found, dataset)
    settings = replace(settings, runner=way.runner, device=way.device)  # type: ignore[arg-type]
    return plan_launch(desk, name, dataset, image, args, gpus, settings, run), found


def member(name: str, request: dict[str, Any], own_image: bool) -> Member:
    """What has to be the same on all. Our own images were just made from the same files; finished on
    each box, they have ids of their own."""
    data = request.get("data") or {}
    return Member(
        name,
        request["runner"],
        request["device"],
        data.get("version", ""),
        request.get("image", "") if own_image else "",
        request["fingerprint"],
    )


def choose_start_of_all(
    requests: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]], new: bool
) -> dict[str, str]:
    """The runs, by box, of an earlier training of exactly these boxes that can go on; {} for none."""
    chief = next(iter(requests))
    known = requests[chief]
    version = (known.get("data") or {}).get("version", "")
    runs = [r for r in found[chief]["runs"] if (r.get("run") or {}).get("worker")]
    start = choose_start(runs, known["fingerprint"], version, known.get("image", ""), new)
    if start.action == "new":
        return {}
    run = next(each["run"] for each in runs if each["id"] == start.run)
    old: dict[str, str] = run["worker"]["runs"]
    return old if list(old) == list(requests) else {}


def meet(desk: Desk, boxes: Boxes, port: int) -> dict[str, str]:
    """The private address by which the others reach each box, tried for real on the very port."""
    offered = candidates({name: box.call("addresses") for name, box in boxes.items()})
    nonces = {name: secrets.token_hex(8) for name in boxes}
    with ExitStack() as stack:
        for name, box in boxes.items():
            request = {"port": port, "nonce": nonces[name]}
            stack.enter_context(held(box, "await_peers", desk.show.note, **request))
        reached = {
            caller: {
                name: box.call("reach", targets=[[a, port, nonces[name]] for a in own])["reached"]
                for name, own in offered.items()
                if name != caller
            }
            for caller, box in boxes.items()
        }
    chosen = choose_addresses(offered, reached, port)
    desk.show.step("workers: " + ", ".join(f"{n} at {a}:{port}" for n, a in chosen.items()))
    return chosen


def start_all(
    desk: Desk, boxes: Boxes, requests: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """All, or none: what was started before one failed is stopped and removed again.

    None of them makes a step before all are there: TensorFlow waits for its peers.
    """
    started: list[str] = []
    try:
        for name in reversed(list(boxes)):  # the chief last: its start is the group's
            started.append(name)
            release_with_next(boxes[name])
            submit(desk, name, boxes[name], requests[name], wait=False)
    except KitError:
        for name in started:
            take_back(desk, boxes[name], name, requests[name]["id"])
        raise
    if desk.dry_run:
        return planned({name: requests[name]["id"] for name in boxes})
    return wait_for_all(desk, boxes, {name: requests[name]["id"] for name in boxes})


def take_back(desk: Desk, box: Agent, name: str, run: str) -> None:
    """Stop and remove a run that was started in vain; what it can't undo, it says."""
    try:
        box.call("stop", run=run, grace=5.0)
        box.call("rm", run=run)
    except KitError as no:
        if "no run" not in no.message:
            desk.show.warn(f"{name}: {run} was started and could not be taken back: {no.message}")


def wait_for_all(desk: Desk, boxes: Boxes, runs: dict[str, str]) -> list[dict[str, Any]]:
    """The chief's first step is everybody's, so all are waited for at once. Where one fails at its
    start, the others are stopped: they would wait for it for ever."""

    def wait(name: str) -> dict[str, Any]:
        report = watched(desk, name, boxes[name], "wait", {"run": runs[name]}, runs[name])
        return {"box": name, **conclude(desk, report)}

    with ThreadPoolExecutor(len(boxes)) as pool:
        waiting = {pool.submit(wait, name): name for name in boxes}
        for each in as_completed(waiting):
            if isinstance(each.exception(), RunFailed):
                failed = waiting[each]
                for other in boxes:
                    if other != failed:
                        stop_waiting(desk, other, boxes[other], runs[other], runs[failed])
                break
        each.result()  # raises what came first
        return [found.result() for found in waiting]


def stop_waiting(desk: Desk, name: str, box: Agent, run: str, failed: str) -> None:
    """Stop a worker whose peer did not start; what can't be done is said."""
    try:
        box.call("stop", run=run, grace=5.0, by=f"the kit, as {failed} failed")
        desk.show.step(f"{name}: {run} stopped: it would have waited for {failed}")
    except KitError as no:
        desk.show.warn(f"{name}: {run} waits for {failed} and could not be stopped: {no.message}")


def summaries(found: dict[str, dict[str, Any]], runs: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Of each box's facts the run that is meant, where it is there."""
    return {
        name: next((each for each in found[name]["runs"] if each["id"] == run), {})
        for name, run in runs.items()
    }


def go_on(
    desk: Desk, boxes: Boxes, runs: dict[str, str], known: dict[str, dict[str, Any]], port: int
) -> list[dict[str, Any]]:
    """The same group goes on from the chief's newest checkpoint, or is joined where all of it runs."""
    together = all_run(known)
    desk.show.step(
        f"{'join' if together else 'resume'} {', '.join(runs.values())} (--new starts another)"
    )
    if desk.dry_run:
        return planned(runs)
    hosts = None if together else gather(desk, boxes, runs, known, port)
    for name, box in boxes.items():
        release_with_next(box)
        box.call("resume", run=runs[name], hosts=hosts)
    return wait_for_all(desk, boxes, runs)


def gather(
    desk: Desk, boxes: Boxes, runs: dict[str, str], known: dict[str, dict[str, Any]], port: int
) -> list[str]:
    """Where the workers are now ("address:port"), after what was left of the group has ended."""
    end_all(boxes, runs, known)
    addresses = meet(desk, boxes, port)
    return [f"{addresses[name]}:{port}" for name in runs]


def end_all(boxes: Boxes, runs: dict[str, str], known: dict[str, dict[str, Any]]) -> None:
    """Stop what is left of a group: those that wait for the others hold the port."""

    def end(name: str) -> None:
        if known[name]:
            boxes[name].call("stop", run=runs[name], grace=patience(known[name]), by=TOGETHER)

    with ThreadPoolExecutor(len(boxes)) as pool:
        list(pool.map(end, boxes))


def planned(runs: dict[str, str]) -> list[dict[str, Any]]:
    return [{"box": name, "id": run, "outcome": "planned"} for name, run in runs.items()]
