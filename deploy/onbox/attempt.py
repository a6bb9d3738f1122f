"""One attempt of a run: queue, prepare, stage, start, watch, settle; it alone writes the state."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from .endings import Ending, Facts, why_ended
from .leases import Leases, cards, taken
from .output import OutputLog, tail
from .places import Places
from .preemption import wait_for_notice
from .queueing import Verdict, parse_gpus, plan_queue
from .refusal import Refusal
from .runs import (
    WAITING,
    change_state,
    list_runs,
    read_intent,
    read_progress,
    read_state,
    write_state,
)
from .steps import boot_mark, first_step_seconds, newest_step
from .stopping import (
    drop_intent,
    give_up_reserve,
    reserve_path,
    stop_at_once,
    write_intent,
)
from .workers import moved, own_addresses

PERIOD = 0.25  # seconds between two looks
EAGER = 0.05  # until the first step, which is waited for
RESERVED = 256 << 10  # bytes, given up on a full disk to say just that
BEAT = 20.0  # seconds between two signs of life in state.json's mtime


class Attempt:
    """Everything of one attempt; its steps are called in order by the supervisor."""

    def __init__(self, places: Places, folder: str, run: dict[str, Any]) -> None:
        self.places, self.folder, self.run = places, folder, run
        self.leases = Leases()
        self.log = OutputLog(os.path.join(folder, "logs"))
        self.runner = _runner(places, folder, run, self.log)
        self._began = time.time()
        self._stop = threading.Event()
        self._rebooted = False

    def ask_to_stop(self) -> None:
        """From a signal: whoever sent it has written an intent, or the box is going down."""
        self._stop.set()

    def begin(self) -> bool:
        """Queue or start; False where it waits for a GPU, was stopped before it began, or could not
        be reached by the other workers.

        A GPU is held from the moment at which it can be used: while the data set is staged and
        looked at, others may have it.
        """
        if stop_at_once(self.folder) or not self._gpus_are_free():
            return False
        since = read_state(self.folder)["since"]
        phases = {"queue": max(0.0, self._began - since) if since else 0.0}
        self._keep_reserve()
        fresh = {"boot": boot_mark(), "pid": os.getpid(), "gpus": []}
        fresh.update(attempt_at=self._began, phases=phases, ending=None, exit_code=None)
        fresh.update(step_before=newest_step(self.folder), handle=None, doing="")
        change_state(self.folder, "staging", **fresh)
        if self._has_moved():
            return False
        self._phase("prepare", lambda: self.runner.prepare(self._say))
        data = self._phase("stage", self._stage)
        if wants_gpu(self.run):
            self._phase("check", lambda: self._look_at(data))
        if stop_at_once(self.folder) or not self._take_gpus():
            return False
        gpus = self.leases.gpus
        handle = self._phase("start", lambda: self.runner.start(gpus, data))
        change_state(self.folder, "running", handle=handle, doing="", data=data, gpus=gpus)
        return True

    def _has_moved(self) -> bool:
        """Of several workers: end the attempt where the others know this box by another address."""
        why = moved(self.run["worker"], own_addresses()) if self.run.get("worker") else ""
        if why:
            self.log.write(f"gpubox: {why}\n".encode())
            self._end(Ending("interrupted", "address", why), None)
        return bool(why)

    def _gpus_are_free(self) -> bool:
        """What the run asks for could be leased now; else it is put into the queue."""
        if not wants_gpu(self.run):
            return True
        verdict = self._verdict()
        return verdict.gpus is not None or self._wait_for(verdict.why)

    def _take_gpus(self) -> bool:
        """Lease what the run asks for; else put it into the queue, with the reason."""
        if not wants_gpu(self.run):
            return True
        verdict = self._verdict()
        if verdict.gpus is None:
            return self._wait_for(verdict.why)
        if not self.leases.take(list(verdict.gpus), self.run["id"]):
            return self._wait_for("another run took the GPU just now")
        return True

    def _wait_for(self, why: str) -> bool:
        change_state(self.folder, "queued", waits_for=why, doing="")
        return False

    def _verdict(self) -> Verdict:
        """Its place in the queue as it is now."""
        found = cards()
        return dict(plan_queue(self._waiting(), found, taken(found)))[self.run["id"]]

    def _waiting(self) -> list[Any]:
        """Those in the queue, this run among them, in the order in which they were made."""
        found = [each for each in list_runs(self.places) if not each.get("damaged")]
        return [
            (each["id"], parse_gpus(each["run"]["gpus"]))
            for each in found
            if each["id"] == self.run["id"]
            or (each["mine"] and each["state"]["state"] in WAITING and wants_gpu(each["run"]))
        ]

    def _stage(self) -> str:
        """The staged folder of the run's data set; an own empty one where it has none."""
        wanted = self.run.get("data")
        if not wanted:
            empty = os.path.join(self.folder, "input")
            os.makedirs(empty, exist_ok=True)
            return empty
        from .stage import stage_version

        return stage_version(self.places, wanted["name"], wanted["version"])

    def _look_at(self, data: str) -> None:
        """The workload's own look at the data; DataError where it can't be trained on."""
        from .datacheck import check_for_run

        check_for_run(self.run, self.folder, data, self.runner.python)

    def _phase(self, name: str, step: Any) -> Any:
        """Do one step; its seconds are kept in the state."""
        self._say(name)
        began = time.monotonic()
        result = step()
        state = read_state(self.folder)
        state["phases"] = {**state.get("phases", {}), name: round(time.monotonic() - began, 3)}
        write_state(self.folder, state)
        return result

    def _say(self, text: str) -> None:
        """What it is doing now, for who waits."""
        write_state(self.folder, {**read_state(self.folder), "doing": text})

    def adopt(self) -> None:
        """Take over a run whose supervisor died; what it ran may be alive or not."""
        state = read_state(self.folder)
        self._rebooted = state.get("boot") != boot_mark()
        self.leases.take(state.get("gpus") or [], self.run["id"])
        if state.get("handle"):
            self.runner.adopt(state["handle"])
        elif state["state"] == "staging":
            raise Refusal("KitError", "its supervisor died while it was being started", "")

    def watch(self) -> None:
        """Until the program has ended: output, heartbeat, first step, stop, pre-emption."""
        self._watch_for_pre_emption()
        beat, first, asked = 0.0, False, 0.0
        grace = float(self.run["stop_grace"])
        while not self.runner.poll(PERIOD if first else EAGER):
            now = time.monotonic()
            if now - beat >= BEAT:
                beat = now
                os.utime(os.path.join(self.folder, "state.json"), None)
            if not first:
                first = self._note_first_step()
            if not asked and (self._stop.is_set() or read_intent(self.folder)):
                asked, grace = now, self._begin_stopping(grace)
            elif asked and now - asked > grace + self.runner.KILL_MARGIN:
                self.runner.kill()

    def _begin_stopping(self, grace: float) -> float:
        """SIGTERM with the reason on record; returns the grace that it has."""
        intent = read_intent(self.folder)
        if intent is None:
            intent = write_intent(self.folder, "the shutdown of the box", "interrupted")
        grace = float(intent.get("grace", grace))
        if read_state(self.folder)["state"] == "running":
            with contextlib.suppress(OSError):
                change_state(self.folder, "stopping", by=intent["by"])
        self.runner.terminate(grace)
        return grace

    def _note_first_step(self) -> bool:
        state = read_state(self.folder)
        seconds = first_step_seconds(self.folder, state)
        if seconds is None:
            return False
        state["phases"] = {**state.get("phases", {}), "first step": round(seconds, 3)}
        with contextlib.suppress(OSError):  # a full disk must not end the run from our side
            write_state(self.folder, {**state, "first_step_at": time.time()})
        return True

    def _watch_for_pre_emption(self) -> None:
        """A provider that takes the machine back says so shortly before."""

        def noticed(text: str) -> None:
            write_intent(self.folder, f"pre-emption ({text})", "interrupted")

        provider = str(self.run.get("provider") or "auto")
        threading.Thread(target=wait_for_notice, args=(provider, noticed), daemon=True).start()

    def settle(self) -> None:
        """The end: why, which state, and nothing left behind."""
        facts = self._facts()
        give_up_reserve(self.folder)  # room on a full disk for the state that says so
        self._end(why_ended(facts), facts.exit_code)
        self.runner.clean()

    def _facts(self) -> Facts:
        room = os.statvfs(self.folder)
        held, present = self.leases.gpus, [card["uuid"] for card in cards()]
        return Facts(
            exit_code=self.runner.exit_code,
            intent=read_intent(self.folder),
            out_of_memory=self.runner.out_of_memory(),
            engine_lost=self.runner.engine_lost,
            rebooted=self._rebooted,
            lost_gpus=tuple(uuid for uuid in held if uuid not in present),
            free_bytes=room.f_bavail * room.f_frsize,
            finished=self._has_result(),
            tail=tuple(tail(os.path.join(self.folder, "logs"))),
            worker=bool(self.run.get("worker")),
        )

    def _has_result(self) -> bool:
        """The program wrote its result in this attempt."""
        began = read_state(self.folder).get("attempt_at", self._began)
        with contextlib.suppress(OSError):
            result = os.path.join(self.folder, "output", "result.json")
            return os.stat(result).st_mtime >= float(began)
        return False

    def _end(self, ending: Ending, exit_code: int | None) -> None:
        state = read_state(self.folder)
        step = newest_step(self.folder)
        tries = 0 if step > state.get("best_step", -1) else state.get("tries", 0) + 1
        change_state(
            self.folder,
            ending.state,
            ending={"kind": ending.kind, "text": ending.text},
            exit_code=exit_code,
            best_step=max(step, state.get("best_step", -1)),
            tries=tries,
            handle=None,
            doing="",
            last_progress=read_progress(self.folder),
        )
        drop_intent(self.folder)

    def _keep_reserve(self) -> None:
        with contextlib.suppress(OSError), open(reserve_path(self.folder), "wb") as file:
            file.write(b"\0" * RESERVED)

    def give_up(self, fault: Exception) -> None:
        """Before or while it ran something of ours failed: say what, and leave nothing running."""
        with contextlib.suppress(Exception):
            self.runner.clean()
        if isinstance(fault, Refusal):
            hint = f" ({fault.hint})" if fault.hint else ""
            ending = Ending("failed", fault.kind, fault.message + hint)
            if fault.kind == "KitError":
                ending = Ending("interrupted", "lost", fault.message)
        else:
            ending = Ending("failed", "kit", f"{type(fault).__name__}: {fault}")
        self.log.write(f"gpubox: {ending.text}\n".encode())
        give_up_reserve(self.folder)
        with contextlib.suppress(ValueError):
            self._end(ending, None)


def _runner(places: Places, folder: str, run: dict[str, Any], log: OutputLog) -> Any:
    """The runner that was chosen; only that one is imported, for a start is waited for."""
    if run["runner"] == "docker":
        from .docker_runner import DockerRunner

        return DockerRunner(places, folder, run, log)
    from .process_runner import ProcessRunner

    return ProcessRunner(places, folder, run, log)


def wants_gpu(run: dict[str, Any]) -> bool:
    return bool(run["device"] == "gpu")
