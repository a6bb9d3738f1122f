"""Checksums of many files, made by a process a core while this one goes through the scan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from deploy.effects.packer import Packer, ended, get
from deploy.effects.parts import sha256_of
from deploy.effects.scan import cores
from deploy.errors import error_named
from deploy.plan.transfer import Found

Asked = tuple[Found, bool]  # a file, and whether its checksum is wanted

BATCH = 400  # files: two answers of so many fit into a pipe, so that neither side waits for ever
MANY = 200  # checksums among the first BATCH files, from which on processes are worth their start
MOST = 4  # processes
AHEAD = 2  # batches that a process has been asked for


def summed(root: str, asked: Iterable[Asked], processes: int | None = None) -> Iterator[Found]:
    """All that was asked about, in the same order, with the checksums that are wanted."""
    batches = in_batches(asked)
    for batch in batches:
        if sum(wanted for _, wanted in batch) >= MANY:
            yield from _by_processes(root, batch, batches, processes or min(MOST, cores()))
            return
        for found, wanted in batch:
            yield found._replace(sha256=sha256_of(root, found)) if wanted else found


def in_batches(asked: Iterable[Asked]) -> Iterator[list[Asked]]:
    source = iter(asked)
    return iter(lambda: list(islice(source, BATCH)), [])


def _by_processes(
    root: str, first: list[Asked], rest: Iterator[list[Asked]], processes: int
) -> Iterator[Found]:
    """This batch and the ones behind it, each by the process whose turn it is."""
    packers = deque(Packer() for _ in range(processes))
    pending: deque[tuple[list[Asked], Packer]] = deque()
    batch: list[Asked] | None = first
    try:
        while batch or pending:
            if batch:
                packers.rotate(-1)
                packers[0].ask_sums(root, [found for found, wanted in batch if wanted])
                pending.append((batch, packers[0]))
                batch = next(rest, None)
            if not batch or len(pending) == AHEAD * processes:
                yield from _answered(*pending.popleft())
    finally:
        for each in packers:
            each.close()


def _answered(batch: list[Asked], packer: Packer) -> Iterator[Found]:
    try:
        sums = get(packer.stdout)
    except (OSError, EOFError, ValueError) as no:
        raise ended() from no
    if isinstance(sums, dict):
        raise error_named(sums["kind"])(sums["message"], sums["hint"])
    each_sum = iter(sums)
    for found, wanted in batch:
        yield found._replace(sha256=next(each_sum)) if wanted else found
