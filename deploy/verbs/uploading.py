"""One upload in the making: look at both sides, plan, show, carry out, remember."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from deploy.console import Bar
from deploy.effects.agent import Agent
from deploy.effects.hashes import (
    Memory,
    Pathless,
    hash_what_may_be_there,
    hash_what_may_have_moved,
    remembered,
)
from deploy.effects.link import Stream
from deploy.effects.manifests import (
    Base,
    Drafted,
    draft_manifest,
    fetch_base,
    finish_manifest,
    keep_manifest,
)
from deploy.effects.scan import Scanning, refuse_what_cannot_go, scan_line, warnings
from deploy.effects.session import session
from deploy.effects.streams import Streams
from deploy.effects.upload import Sender, Told
from deploy.effects.walk import Survey
from deploy.errors import DataError, TransferError
from deploy.plan.config import DataSet
from deploy.plan.quantities import show_size
from deploy.plan.transfer import (
    FOLDER,
    LINK,
    Change,
    Entry,
    Found,
    Step,
    Totals,
    is_packing,
    must_fit,
    must_hold_something,
    steps,
)
from deploy.verbs.desk import Desk

FEW = 50_000  # changes that are kept in memory


class Sides(NamedTuple):
    """What is here and what the box has, without most of what is the same on both sides."""

    found: Callable[[], Iterable[Found]]
    base: Callable[[], Iterable[Entry]]
    moved: dict[str, Entry]  # contents that lost their path, by checksum
    same_files: int = 0  # that were left out
    same_others: int = 0


class Plan(NamedTuple):
    """What an upload comes to, and its steps (those that keep what is there may be left out)."""

    totals: Totals
    changes: Iterable[Step]


class Source:
    """What is to go up from the laptop, what is remembered of it, and its scan, which has begun."""

    def __init__(self, path: str, wanted: DataSet, memory: Memory, folder: Path) -> None:
        self.path, self.wanted, self.memory, self.folder = path, wanted, memory, folder
        self.scanned = folder / "scan"
        self.scan_again()

    def scan_again(self) -> None:
        self.scanning = Scanning(self.path, self.wanted.exclude, self.scanned)

    @property
    def is_folder(self) -> bool:
        return os.path.isdir(self.path)

    @property
    def root(self) -> str:
        """The folder that paths start at: of an archive, the one that it lies in."""
        return self.path if self.is_folder else os.path.dirname(self.path)


def surely_sends(desk: Desk, source: Source) -> bool:
    """Whether the way for the parts is worth its opening before anybody knows what to send."""
    return not source.memory.has_version() and not desk.dry_run


class Upload:
    """One upload: look at both sides, plan, show, carry out."""

    def __init__(self, desk: Desk, box: Agent, name: str, source: Source) -> None:
        self.desk, self.box, self.name, self.source = desk, box, name, source
        self.wanted, self.memory, self.folder = source.wanted, source.memory, source.folder
        self.root = source.root
        self.damaged = False

    def run(self) -> dict[str, Any]:
        with contextlib.ExitStack() as opened:
            asking = self._ask()
            apart = surely_sends(self.desk, self.source) and self.box.link.streams_apart()
            stream = opened.enter_context(self._stream()) if apart else None
            survey, state = self._look(asking)
            self._say_what_is_awkward(survey, state)
            version = self.memory.version_of(survey.fingerprint)
            if version and version == state["id"] and not state["damaged"]:
                return self._nothing_to_do(survey, version)
            if not self.source.is_folder:
                self._look_into_archive(survey)
            if self.desk.dry_run:
                return self._bring(survey, state, None)
            # the way there takes its time: plan meanwhile
            return self._bring(survey, state, stream or opened.enter_context(self._stream()))

    @contextlib.contextmanager
    def _stream(self) -> Iterator[Stream]:
        with contextlib.closing(self.box.begin("receive")) as stream:
            yield stream

    def _bring(
        self, survey: Survey, state: dict[str, Any], stream: Stream | None
    ) -> dict[str, Any]:
        """Plan, show, and carry out over the stream; without one, only show."""
        base = fetch_base(self.box, self.name, state)
        base.damaged = set(state["damaged"])
        packing = is_packing(self.wanted.layout, survey.small)
        if base.is_empty():
            totals, changes = self._plan_all_new(survey, packing)
        else:
            sides = self._few_changes(survey, state, base) or self._all(survey, base)
            totals, changes = self._plan(sides, packing)
        there = sum(size for size, _ in state["incoming"].values())
        must_fit(totals, packing, there, state["room"])
        if not totals.changes:
            self.memory.remember_version(survey.fingerprint, state["id"])
            return self._nothing_to_do(survey, state["id"])
        self._show_plan(totals, there)
        if stream is None:
            return self._answer(survey, "", totals, 0, False)
        return self._carry_out(survey, state, base, Plan(totals, changes), stream)

    def _ask(self) -> Future[dict[str, Any]]:
        """What the box has, asked for while the scan goes on here."""
        answer: Future[dict[str, Any]] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.box.call("data_state", name=self.name))
            except BaseException as fault:
                answer.set_exception(fault)

        threading.Thread(target=ask, daemon=True).start()
        return answer

    def _look(self, asking: Future[dict[str, Any]]) -> tuple[Survey, dict[str, Any]]:
        """Both sides as they are; what can't go is refused before anything is sent."""
        survey = self.source.scanning.survey()
        refuse_what_cannot_go(survey, self.source.path)
        must_hold_something(survey.files, survey.skipped, self.source.path)
        return survey, asking.result()

    def _say_what_is_awkward(self, survey: Survey, state: dict[str, Any]) -> None:
        for text in [*warnings(survey), *state["notes"]]:
            self.desk.show.warn(text)
        zipped = str(self.wanted.path).lower().endswith(".zst")
        if zipped and not state["zstd"]:
            raise DataError(
                f"{self.wanted.path}: the box has no zstd to unpack it with",
                "apt-get install zstd there, or use .tar.gz",
            )

    def _look_into_archive(self, survey: Survey) -> None:
        """What staging would refuse is refused before it goes up; once for the same archive."""
        from deploy.effects.archive import can_look_into, look_into  # late: folders need no zipfile

        if self.memory.was_looked_into(survey.fingerprint):
            return
        if not can_look_into(self.source.path):
            self.desk.show.note(f"{self.name}: no zstd here to look into it: the box will")
            return
        with self.desk.show.progress(f"look into {self.name}", survey.bytes) as bar:
            found = look_into(self.source.path, self.wanted.zip_names, bar.at)
        for text in warnings(Survey(alike=found.alike)):
            self.desk.show.warn(text)
        self.memory.remember_look(survey.fingerprint)

    def _nothing_to_do(self, survey: Survey, version: str) -> dict[str, Any]:
        self.desk.show.done(
            f"{self.name}: nothing to send, {survey.files} files as on the box ({version[:12]})"
        )
        return self._answer(survey, version, Totals(), 0, False)

    def _few_changes(self, survey: Survey, state: dict[str, Any], base: Base) -> Sides | None:
        """What is not as it was when the box's version came about; None where that is not known."""
        if base.damaged or not self.memory.stands_for(state["id"]):
            return None
        try:
            scanned, known = self.source.scanned, self.folder / "known"
            changes = self.memory.changes(scanned, survey.fingerprint, FEW, known)
        except OverflowError:
            return None
        there, pathless = base.named(key for key, _ in changes), Pathless()
        here = [found for _, found in changes if found]
        found = list(hash_what_may_be_there(self.root, here, there, pathless))
        found = list(hash_what_may_have_moved(self.root, found, pathless.sizes()))
        if not self.desk.dry_run:  # after it, the memory still stands for the box's version
            known.replace(self.memory.known)
            if hashed := [scan_line(each) for each in found if each.sha256]:
                self.memory.learn(hashed)
        files = sum(each.type not in (FOLDER, LINK) for each in found)
        same, others = survey.files - files, survey.folders + survey.links - (len(found) - files)
        return Sides(lambda: found, lambda: there, pathless.contents, same, others)

    def _all(self, survey: Survey, base: Base) -> Sides:
        """Both sides in whole; checksums are remembered as they are found."""
        memory, mark, root = self.memory, survey.fingerprint, self.root
        pathless, there = Pathless(), base.sound_entries()
        here = map(remembered, memory.recall(self.source.scanned))
        known = hash_what_may_be_there(root, here, there, pathless)
        memory.remember(mark, map(scan_line, known))
        if sizes := pathless.sizes():
            known = hash_what_may_have_moved(root, memory.found(), sizes)
            memory.remember(mark, map(scan_line, known))
        return Sides(memory.found, base.sound_entries, pathless.contents)

    def _plan_all_new(self, survey: Survey, packing: bool) -> Plan:
        """For a box that has nothing: the survey says what it comes to, so that the first part goes
        before anybody has looked at the last file."""
        totals = Totals()
        totals.add_all(survey.files, survey.small, survey.bytes, survey.small_bytes, packing)
        totals.add_notes(survey.folders, survey.links)
        found = map(remembered, self.memory.recall(self.source.scanned))
        return Plan(totals, steps(found, (), packing))

    def _plan(self, sides: Sides, packing: bool) -> Plan:
        """Few changes are kept as they are found; of many, the plan is made again as it is carried out."""
        totals, changes = Totals(), []
        totals.keep(sides.same_files, sides.same_others)
        for step in self._steps(sides, packing):
            totals.add(step)
            if step.action != "keep" and totals.changes <= FEW:
                changes.append(step)
        if totals.changes <= FEW:
            return Plan(totals, changes)
        return Plan(totals, self._steps(sides, packing))

    def _steps(self, sides: Sides, packing: bool) -> Iterator[Step]:
        return steps(sides.found(), sides.base(), packing, sides.moved)

    def _show_plan(self, totals: Totals, there: int) -> None:
        half = f", {show_size(there)} of it there from the last attempt" if there else ""
        self.desk.show.step(
            f"{self.name}: {totals.send_files} files, {show_size(totals.send_bytes)} to send{half}"
        )
        say = self.desk.show.say if self.desk.dry_run else self.desk.show.note
        for line in totals.lines():
            say("  " + line)

    def _carry_out(
        self, survey: Survey, state: dict[str, Any], base: Base, plan: Plan, stream: Stream
    ) -> dict[str, Any]:
        totals, hashed = plan.totals, self.folder / "hashed"
        with (
            self.desk.show.progress(self.name, totals.send_bytes, files=totals.send_files) as bar,
            self._streams(stream, state["id"], totals) as streams,
        ):
            incoming = {key: (size, sha256) for key, (size, sha256) in state["incoming"].items()}
            try:
                try:
                    with hashed.open("w", encoding="ascii") as file:
                        sender = Sender(streams, self.root, incoming, file, teller(bar))
                        with contextlib.closing(sender.changes(plan.changes)) as changes:
                            drafted = self._send(base, changes, streams)
                finally:
                    self._learn(hashed, survey, base)
                version = self._committed(drafted, survey, streams)
            finally:
                self.damaged, sent = streams.damaged, streams.sent
        self.desk.show.done(
            f"{self.name}: version {version[:12]} is on the box, {show_size(sent)} sent"
        )
        return self._answer(survey, version, totals, sent, True)

    @contextlib.contextmanager
    def _streams(self, stream: Stream, base: str, totals: Totals) -> Iterator[Streams]:
        """As many as the config says and as there is work for; the first one holds the lock."""
        box = self.desk.box(self.box.link.name)
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        asked = {"name": self.name, "base": base, "group": box.data_group, "who": who}
        wanted = min(box.streams, totals.parts())
        with contextlib.ExitStack() as opened:
            sessions = [opened.enter_context(session(self.box, stream, self._event, **asked))]
            if wanted > 1:
                sessions[0].wait_until_ready()
            for _ in range(wanted - 1):
                more = session(
                    self.box, self.box.begin("receive"), self._event, beside=True, **asked
                )
                sessions.append(opened.enter_context(more))
            yield Streams(sessions)

    def _event(self, event: dict[str, Any]) -> None:
        if "waiting" in event:
            owner = event["waiting"]
            self.desk.show.note(f"waiting for another upload by {owner.get('who', 'someone')}")
        if "note" in event:
            self.desk.show.note(f"{self.name}: {event['note']}")

    def _send(self, base: Base, changes: Iterator[Change], streams: Streams) -> Drafted:
        """Send as the changes are asked for, then ask the box to make the new version current."""
        zip_names = self.wanted.zip_names
        drafted = draft_manifest(base.lines(), changes, self.folder, zip_names)
        streams.commit(drafted.version, drafted.header._asdict())
        return drafted

    def _committed(self, drafted: Drafted, survey: Survey, streams: Streams) -> str:
        """Wait until the new version is the current one there, and remember it here."""
        written, sha256 = finish_manifest(drafted)  # meanwhile
        if streams.answer()["id"] != drafted.version:
            raise TransferError(f"{self.name}: the box ended before the commit", "try again")
        keep_manifest(written, sha256)
        self.memory.remember_version(survey.fingerprint, drafted.version)
        return drafted.version

    def _learn(self, hashed: Path, survey: Survey, base: Base) -> None:
        """Remember what was hashed on the way, however the upload ended."""
        try:
            with hashed.open(encoding="ascii") as lines:
                if base.is_empty():
                    self.memory.learn_first(self.source.scanned, survey.fingerprint, lines)
                else:
                    self.memory.learn(lines)
        except OSError:
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


def teller(bar: Bar) -> Told:
    """Moves the bar by what has gone, from any thread."""
    gone, lock = {"bytes": 0, "files": 0}, threading.Lock()

    def told(path: str, count: int, files: int) -> None:
        with lock:
            gone["bytes"] += count
            gone["files"] += files
            bar.at(gone["bytes"], detail=path, files=gone["files"])

    return told
