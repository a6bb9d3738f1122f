"""Runs a program in a container: compose.yaml with one generated file over it, found by label."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from typing import Any

from .compose import Mounts, compose_run, container_name, project
from .memory import MemoryWatch, container_groups, own_cgroup
from .output import OutputLog
from .places import Places
from .process_runner import cache_of, scratch_of
from .publish import atomic_file
from .refusal import Refusal

MEMORY_PERIOD = 0.02  # seconds; a look is one read of a small file
ENGINE_PATIENCE = 600.0  # seconds that a dead engine may take to come back


def docker(*arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """One command of the engine's client; never raises for what the engine says."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        late = f"no answer within {seconds:.0f} s"
        return subprocess.CompletedProcess(["docker"], 124, "", late)
    except OSError as no:
        return subprocess.CompletedProcess(["docker"], 127, "", str(no))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1][:300]


def containers_of(run_id: str) -> list[str]:
    """Ids of a run's containers, dead ones too, by exact label."""
    done = docker("ps", "-aq", "--no-trunc", "--filter", f"label=gpubox.run={run_id}")
    return done.stdout.split()


def inspect(container: str) -> dict[str, Any] | None:
    """The engine's record of a container; None where it is gone or the engine does not answer."""
    done = docker("inspect", "--type", "container", container, seconds=30)
    try:
        return dict(json.loads(done.stdout)[0]) if done.returncode == 0 else None
    except (ValueError, IndexError):
        return None


def engine_answers() -> bool:
    return docker("version", "--format", "{{.Server.Version}}", seconds=20).returncode == 0


def image_id(name: str) -> str:
    """The exact id of an image on this box; ImageError where it is not there."""
    done = docker("image", "inspect", "--format", "{{.Id}}", name)
    if done.returncode != 0:
        raise Refusal("ImageError", f"no image {name} on this box", "fab deploy brings it there")
    return done.stdout.strip()


class DockerRunner:
    """One attempt of a run in a container; the engine may die and come back meanwhile."""

    KILL_MARGIN = 10.0  # seconds after the grace, when the engine should have done it
    python = ""  # the image's own

    def __init__(self, places: Places, folder: str, run: dict[str, Any], log: OutputLog) -> None:
        self.places, self.folder, self.run, self.log = places, folder, run, log
        self.exit_code: int | None = None
        self.engine_lost = False
        self._container, self._since, self._skip = "", "", 0
        self._memory = MemoryWatch()
        self._oom_killed = False
        self._ended = threading.Event()

    def prepare(self, say: Any) -> None:
        """Refusal where the image is missing, or the engine."""
        try:
            image_id(self.run["image"])
        except Refusal:
            if not engine_answers():
                raise Refusal(
                    "EngineError", "the Docker engine does not answer", "fab doctor"
                ) from None
            raise

    def start(self, gpus: list[str], data: str) -> dict[str, Any]:
        """Bring the one service up; returns what `adopt` needs to find it again."""
        self._make_way()
        scratch = scratch_of(self.places, self.run)
        shutil.rmtree(scratch, ignore_errors=True)
        os.makedirs(scratch, mode=0o700)
        self._write_compose(gpus, data, scratch)
        container = self._create()
        self._expect(container)
        done = docker("start", container, seconds=300)
        if done.returncode != 0:
            raise _refused(last_line(done.stderr))
        handle = {"container": container, "base": self.log.end}
        self._watch(container)
        return handle

    def _create(self) -> str:
        """The container, made and not yet started; its id."""
        up = ["up", "--no-start", "--no-build", "--no-deps", "--force-recreate", "--quiet-pull"]
        done = docker(*self._compose(), *up, self.run["service"], seconds=300)
        self._say("\n".join(line for line in done.stderr.splitlines() if "error" in line.lower()))
        found = containers_of(self.run["id"])
        if done.returncode != 0 or len(found) != 1:
            raise _refused(last_line(done.stderr))
        return found[0]

    def adopt(self, handle: dict[str, Any]) -> None:
        """Go on watching a container that an earlier supervisor started."""
        self._skip = self.log.end - handle["base"]
        with contextlib.suppress(OSError, ValueError):
            with open(self._mark()) as file:
                stamp, offset = file.read().split()
            if int(offset) > handle["base"]:
                self._since, self._skip = stamp, self.log.end - int(offset)
        self._expect(handle["container"])
        self._watch(handle["container"])

    def _mark(self) -> str:
        """Where it is kept how far the output was copied: the time of a line, our offset after it."""
        return os.path.join(self.folder, "logs", "copied")

    def _write_compose(self, gpus: list[str], data: str, scratch: str) -> None:
        code, env = os.path.join(self.folder, "code", "user"), os.path.join(self.folder, "env")
        mounts = Mounts(
            data,
            os.path.join(self.folder, "output"),
            scratch,
            cache_of(self.places),
            code if os.path.isdir(code) else "",
            env if os.path.isfile(env) else "",
        )
        run = {**self.run, "gpu_count": len(gpus)}
        user = f"{os.getuid()}:{os.getgid()}"
        text = compose_run(run, gpus, mounts, user, self._entrypoint() if mounts.env else [])
        with atomic_file(os.path.join(self.folder, "compose.run.json")) as file:
            file.write(text.encode())

    def _entrypoint(self) -> list[str]:
        form = "{{json .Config.Entrypoint}}"
        done = docker("image", "inspect", "--format", form, self.run["image"])
        return list(json.loads(done.stdout or "null") or [])

    def _compose(self) -> list[str]:
        files = [os.path.join(self.folder, name) for name in ("compose.yaml", "compose.run.json")]
        return ["compose", "-p", project(self.run["id"]), "-f", files[0], "-f", files[1]]

    def _make_way(self) -> None:
        """A dead container of our name is removed, its output kept; a living one is not touched."""
        for container in containers_of(self.run["id"]):
            docker("rm", "--force", container)
        name = container_name(self.run["id"], self.run["service"])
        found = inspect(name)
        if found is None:
            return
        if found["State"]["Running"]:
            raise Refusal(
                "EngineError",
                f"a container that is not ours runs under the name {name}",
                "rename it, or start a new run",
            )
        self._say(f"kept from a dead container named {name}:")
        self._say(docker("logs", found["Id"]).stdout[-65536:])
        docker("rm", found["Id"])

    def _say(self, text: str) -> None:
        if text.strip():
            self.log.write(("gpubox: " + text.strip() + "\n").encode())

    def _expect(self, container: str) -> None:
        """Watch the memory counter from before the start: what dies at once is not missed."""
        self._container = container
        self._memory.expect(container_groups(container))
        threading.Thread(target=self._watch_memory, daemon=True).start()

    def _watch(self, container: str) -> None:
        threading.Thread(target=self._find_group, args=(container,), daemon=True).start()
        threading.Thread(target=self._follow, daemon=True).start()

    def _find_group(self, container: str) -> None:
        """The cgroup as the kernel has it, wherever this engine puts its containers."""
        found = inspect(container)
        group = own_cgroup(found["State"]["Pid"]) if found and found["State"]["Pid"] else ""
        if group:
            self._memory.follow(group)

    def _watch_memory(self) -> None:
        """Often, since the counter goes with the container, some 50 ms after its program."""
        while not self._ended.wait(MEMORY_PERIOD):
            self._memory.look()

    def _follow(self) -> None:
        """Copy output until the container has ended, over deaths of the engine."""
        lost_at = None
        while not self._ended.is_set():
            self._copy_logs()
            found = inspect(self._container)
            if found is not None and not found["State"]["Running"]:
                self._copy_logs()
                state = found["State"]
                self.exit_code, self._oom_killed = state["ExitCode"], state["OOMKilled"]
                self._ended.set()
            elif found is None and engine_answers():
                self._ended.set()  # somebody removed it: the exit code is not known
            elif found is None:
                self.engine_lost = True
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > ENGINE_PATIENCE:
                    self._ended.set()
                time.sleep(2)

    def _copy_logs(self) -> None:
        """`docker logs --follow` until it ends: the container has, or the engine."""
        since = ["--since", self._since] if self._since else []
        follow = subprocess.Popen(
            ["docker", "logs", "--follow", "--timestamps", *since, self._container],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert follow.stdout
        seen, kept = self._since, time.monotonic()
        for line in follow.stdout:
            stamp, _, text = line.partition(b" ")
            moment = stamp.decode("ascii", "replace")
            # The client's own words have no time; the line of `since` itself comes again.
            if not moment[:4].isdigit() or moment <= self._since:
                continue
            dropped, self._skip = text[: self._skip], max(0, self._skip - len(text))
            self.log.write(text[len(dropped) :])
            seen = moment
            if time.monotonic() - kept > 1:
                kept = time.monotonic()
                self._keep_mark(seen)
        follow.wait()
        self._since = seen
        self._keep_mark(seen)

    def _keep_mark(self, moment: str) -> None:
        with contextlib.suppress(OSError), open(self._mark(), "w") as file:
            file.write(f"{moment} {self.log.end}")

    def poll(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if self._ended.wait(max(0.0, min(0.5, left))):
                return True
            if left <= 0:
                return False

    def terminate(self, grace: float) -> None:
        """SIGTERM, and SIGKILL by the engine itself after the grace."""
        seconds = str(max(0, int(grace)))
        subprocess.Popen(
            ["docker", "stop", "--time", seconds, self._container],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        docker("kill", self._container)

    def out_of_memory(self) -> int:
        return max(self._memory.kills(self.exit_code == 137), int(self._oom_killed))

    def clean(self) -> None:
        """The container and its network, by exact labels; its output stands in the run's log.

        `compose down` would leave a service that belongs to a profile.
        """
        for container in containers_of(self.run["id"]):
            docker("rm", "--force", container)
        label = "label=com.docker.compose.project=" + project(self.run["id"])
        for network in docker("network", "ls", "-q", "--filter", label).stdout.split():
            docker("network", "rm", network)
        shutil.rmtree(scratch_of(self.places, self.run), ignore_errors=True)


def _refused(line: str) -> Refusal:
    if "could not select device driver" in line or "nvidia" in line.lower():
        return Refusal("GpuError", f"the engine can't give GPUs: {line}", "fab doctor")
    return Refusal("EngineError", f"the engine did not start the run: {line}", "fab doctor")
