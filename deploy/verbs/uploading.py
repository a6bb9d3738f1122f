"""One upload in the making: look at both sides, plan, show, carry out, remember."""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deploy.effects.agent import Agent
from deploy.effects.hashes import (
    Base,
    Memory,
    Pathless,
    fetch_base,
    hash_what_may_be_there,
    hash_what_may_have_moved,
    keep_manifest,
)
from deploy.effects.scan import Survey, read_scan, scan, scan_archive
from deploy.effects.session import session
from deploy.effects.upload import Sender, merged_changes, write_manifest
from deploy.errors import DataError, TransferError
from deploy.plan.config import DataSet
from deploy.plan.quantities import show_size
from deploy.plan.transfer import (
    Entry,
    Step,
    Totals,
    entry_of,
    is_archive,
    is_packing,
    must_fit,
    must_hold_something,
    side_by_side,
    steps,
)
from deploy.verbs.desk import Desk

FEW = 50_000  # changes that are kept in memory


class Plan(NamedTuple):
    """What an upload comes to, and its steps (those that keep what is there may be left out)."""

    totals: Totals
    changes: Iterable[Step]


@dataclass
class Upload:
    """One upload: look at both sides, plan, show, carry out."""

    desk: Desk
    box: Agent
    name: str
    wanted: DataSet
    source: str
    memory: Memory
    folder: Path
    damaged: bool = False
    told_at: float = 0.0
    told_bytes: int = 0

    @property
    def root(self) -> str:
        """The folder that paths start at: of an archive, the one that it lies in."""
        return self.source if os.path.isdir(self.source) else os.path.dirname(self.source)

    def run(self) -> dict[str, Any]:
        survey, state = self._look()
        self._say_what_is_awkward(survey, state)
        version = self.memory.version_of(survey.fingerprint)
        if version and version == state["id"] and not state["damaged"]:
            return self._nothing_to_do(survey, version)
        base = fetch_base(self.box, self.name, state)
        base.damaged = set(state["damaged"])
        moved = self._hash(base)
        packing = is_packing(self.wanted.layout, survey.small)
        totals, changes = self._plan(base, packing, moved)
        there = sum(size for size, _ in state["incoming"].values())
        must_fit(totals, packing, there, state["room"])
        if not totals.changes:
            self.memory.remember_version(survey.fingerprint, state["id"])
            return self._nothing_to_do(survey, state["id"])
        self._show_plan(totals, there)
        if self.desk.dry_run:
            return self._answer(survey, "", totals, 0, False)
        return self._carry_out(survey, state, base, totals, changes)

    def _look(self) -> tuple[Survey, dict[str, Any]]:
        """Scan here while the box is asked there."""
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(self.box.call("data_state", name=self.name))
            except BaseException as fault:
                answers.append(fault)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        if os.path.isdir(self.source):
            survey = scan(self.source, self.wanted.exclude, self.folder / "scan")
        elif is_archive(self.source):
            survey = scan_archive(self.source, self.folder / "scan")
        else:
            raise DataError(
                f"{self.source} is neither a folder nor an archive", "name one of these"
            )
        survey.refuse_what_cannot_go(self.source)
        must_hold_something(survey.files, survey.skipped, self.source)
        asking.join()
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return survey, answers[0]

    def _say_what_is_awkward(self, survey: Survey, state: dict[str, Any]) -> None:
        for text in [*survey.warnings(), *state["notes"]]:
            self.desk.show.warn(text)
        zipped = str(self.wanted.path).lower().endswith(".zst")
        if zipped and not state["zstd"]:
            raise DataError(
                f"{self.wanted.path}: the box has no zstd to unpack it with",
                "apt-get install zstd there, or use .tar.gz",
            )

    def _nothing_to_do(self, survey: Survey, version: str) -> dict[str, Any]:
        self.desk.show.done(
            f"{self.name}: nothing to send, {survey.files} files as on the box ({version[:12]})"
        )
        return self._answer(survey, version, Totals(), 0, False)

    def _hash(self, base: Base) -> dict[str, Entry]:
        """Bring the known checksums up to date; returns the contents that lost their path."""
        scanned, root = read_scan(self.folder / "scan"), self.root
        if base.is_empty() and not self.memory.known.exists():
            (self.folder / "scan").replace(self.memory.known)
            return {}
        pathless = Pathless()
        known = self.memory.recall(scanned)
        self.memory.remember(hash_what_may_be_there(root, known, base.sound_entries(), pathless))
        if sizes := pathless.sizes():
            known = read_scan(self.memory.known)
            self.memory.remember(hash_what_may_have_moved(root, known, sizes))
        return pathless.contents

    def _plan(self, base: Base, packing: bool, moved: dict[str, Entry]) -> Plan:
        """Few changes are kept as they are found; of many, the plan is made again as it is carried out."""
        totals, changes = Totals(), []
        for step in self._steps(base, packing, moved):
            totals.add(step)
            if step.action != "keep" and totals.changes <= FEW:
                changes.append(step)
        if totals.changes <= FEW:
            return Plan(totals, changes)
        return Plan(totals, self._steps(base, packing, moved))

    def _steps(self, base: Base, packing: bool, moved: dict[str, Entry]) -> Iterator[Step]:
        return steps(read_scan(self.memory.known), base.sound_entries(), packing, moved)

    def _show_plan(self, totals: Totals, there: int) -> None:
        half = f", {show_size(there)} of it there from the last attempt" if there else ""
        self.desk.show.step(
            f"{self.name}: {totals.send_files} files, {show_size(totals.send_bytes)} to send{half}"
        )
        say = self.desk.show.say if self.desk.dry_run else self.desk.show.note
        for line in totals.lines():
            say("  " + line)

    def _carry_out(
        self,
        survey: Survey,
        state: dict[str, Any],
        base: Base,
        totals: Totals,
        plan: Iterable[Step],
    ) -> dict[str, Any]:
        group = self.desk.box(self.box.link.name).data_group
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        with self.desk.show.progress(self.name, totals.send_bytes) as bar:

            def told(path: str, count: int) -> None:
                self.told_bytes += count
                if time.monotonic() - self.told_at > 0.1:  # a bar costs more than a small file
                    self.told_at = time.monotonic()
                    bar.at(self.told_bytes, detail=path)

            with session(self.box, self._event, name=self.name, group=group, who=who) as line:
                sender = Sender(line, self.root, state["incoming"], self.folder, told)
                try:
                    sender.run(plan)
                    version = self._commit(survey, state, base, sender)
                finally:
                    self.damaged = bool(line.damaged)
                    self._learn(sender)
                    sent = line.sent
        self.desk.show.done(
            f"{self.name}: version {version[:12]} is on the box, {show_size(sent)} sent"
        )
        return self._answer(survey, version, totals, sent, True)

    def _event(self, event: dict[str, Any]) -> None:
        if "waiting" in event:
            owner = event["waiting"]
            self.desk.show.note(f"waiting for another upload by {owner.get('who', 'someone')}")
        if "note" in event:
            self.desk.show.note(f"{self.name}: {event['note']}")

    def _commit(self, survey: Survey, state: dict[str, Any], base: Base, sender: Sender) -> str:
        changes = self.folder / "changes"
        with changes.open("w", encoding="ascii") as file:
            file.writelines(merged_changes(sender))
        with changes.open(encoding="ascii") as lines:
            written, sha256, version, header = write_manifest(
                base.entries(), lines, self.folder, self.wanted.zip_names
            )
        order = {"commit": version, "base": state["id"], "header": header._asdict()}
        answer = sender.session.commit(order, changes)
        if answer["id"] != version:
            raise TransferError(f"{self.name}: the box ended before the commit", "try again")
        keep_manifest(written, sha256)
        self.memory.remember_version(survey.fingerprint, version)
        return version

    def _learn(self, sender: Sender) -> None:
        """Remember what was hashed on the way, however the upload ended."""
        try:
            fresh = list_of_hashed(sender)
            found = side_by_side(fresh, read_scan(self.memory.known))
            self.memory.remember(
                new._replace(sha256=old.sha256)
                if old is not None and (old.size, old.mtime) == (new.size, new.mtime)
                else new
                for old, new in found
                if new is not None
            )
        except (OSError, ValueError):
            self.desk.show.note("the checksums of this upload could not be remembered")

    def _answer(
        self, survey: Survey, version: str, totals: Totals, sent: int, changed: bool
    ) -> dict[str, Any]:
        if survey.skipped and changed:
            self.desk.show.note(f"skipped {survey.skipped} (.DS_Store, ._*, .git, --exclude, …)")
        return {
            "name": self.name,
            "version": version,
            "files": survey.files,
            "bytes": survey.bytes,
            "sent_files": totals.send_files,
            "sent_bytes": sent,
            "skipped": survey.skipped,
            "changed": changed,
            "plan": totals.lines(),
        }


def list_of_hashed(sender: Sender) -> Iterator[Entry]:
    """What the upload hashed on the way, in order."""
    for line in merged_changes(sender):
        if line[0] == "+" and line.endswith("\n"):
            entry = entry_of(line[1:])
            if entry.sha256:
                yield entry
