"""PURE: which GPUs a run asks for, and which of the waiting runs may start now."""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class Ask(NamedTuple):
    """`cards` of them (-1: all of them), or exactly those in `named` (indexes or UUIDs)."""

    cards: int
    named: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """The UUIDs that a run gets, or None with the reason why it waits."""

    gpus: tuple[str, ...] | None
    why: str


def parse_gpus(text: str) -> Ask:
    """`all`, `none`, a count such as `2`, indexes such as `0,2` or `gpu1`, or UUIDs.

    ValueError says what was expected. A lone number is a count: `gpu1` is the card 1.
    """
    parts = [part.strip() for part in str(text).split(",") if part.strip()]
    if parts == ["all"]:
        return Ask(-1)
    if parts in (["none"], ["0"]) or not parts:
        return Ask(0)
    if len(parts) == 1 and parts[0].isdigit():
        return Ask(int(parts[0]))
    names = [part[3:] if re.fullmatch(r"gpu\d+", part) else part for part in parts]
    if all(re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z-]+", name) for name in names):
        return Ask(len(set(names)), tuple(dict.fromkeys(names)))
    raise ValueError(f'expected "all", "none", a count, "0,2", "gpu1" or UUIDs, got {text!r}')


def choose_gpus(ask: Ask, cards: list[dict[str, Any]], taken: dict[str, str]) -> Verdict:
    """The cards for one ask. `cards` are {uuid, index, name}, `taken` is UUID → by whom."""
    if ask.cards == 0:
        return Verdict((), "asks for no GPU")
    by_name = {**{card["uuid"]: card for card in cards}, **{c["index"]: c for c in cards}}
    if ask.named:
        unknown = [name for name in ask.named if name not in by_name]
        if unknown:
            return Verdict(None, f"no GPU {', '.join(unknown)} on this box (it has {len(cards)})")
        wanted = [by_name[name]["uuid"] for name in ask.named]
    elif ask.cards < 0:
        wanted = [card["uuid"] for card in cards]
        if not wanted:
            return Verdict(None, "no GPU on this box")
    else:
        if ask.cards > len(cards):
            return Verdict(None, f"asks for {ask.cards} GPUs, this box has {len(cards)}")
        free = [card["uuid"] for card in cards if card["uuid"] not in taken]
        wanted = free[: ask.cards]
        if len(wanted) < ask.cards:
            return Verdict(None, f"{len(free)} of {ask.cards} GPUs free; {_holders(cards, taken)}")
    busy = {uuid: taken[uuid] for uuid in wanted if uuid in taken}
    if busy:
        return Verdict(None, _holders(cards, busy))
    return Verdict(tuple(wanted), "free")


def _holders(cards: list[dict[str, Any]], taken: dict[str, str]) -> str:
    index = {card["uuid"]: card["index"] for card in cards}
    return "; ".join(f"GPU {index.get(uuid, uuid)} is used by {who}" for uuid, who in taken.items())


def plan_queue(
    waiting: list[tuple[str, Ask]], cards: list[dict[str, Any]], taken: dict[str, str]
) -> list[tuple[str, Verdict]]:
    """Every waiting run, in order, with what it gets or why it waits.

    Nobody overtakes: what an earlier one waits for is kept for it.
    """
    held = dict(taken)
    plan = []
    for run_id, ask in waiting:
        verdict = choose_gpus(ask, cards, held)
        plan.append((run_id, verdict))
        for uuid in verdict.gpus if verdict.gpus is not None else _wanted(ask, cards, held):
            held.setdefault(uuid, f"run {run_id}, which is before it in the queue")
    return plan


def _wanted(ask: Ask, cards: list[dict[str, Any]], held: dict[str, str]) -> list[str]:
    """What a waiting run keeps from later ones: the cards it names, or the free ones it needs."""
    if ask.named:
        return [c["uuid"] for c in cards if c["uuid"] in ask.named or c["index"] in ask.named]
    if ask.cards < 0:
        return [card["uuid"] for card in cards]
    if ask.cards > len(cards):
        return []
    return [card["uuid"] for card in cards if card["uuid"] not in held]
