"""A TensorBoard or notebook as a process of the box's own Python, where there is no engine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import Any

from .places import Places
from .publish import write_json
from .pythons import prepare_python
from .refusal import Refusal
from .view import free_port, jupyter_settings

MODULES = {"tensorboard": "tensorboard.main", "notebook": "jupyterlab"}
PACKAGES = {"tensorboard": "tensorboard", "notebook": "jupyterlab"}
PR_SET_PDEATHSIG = 1


class ProcessServer:
    """One server as our child; it can't outlive us."""

    def __init__(
        self, places: Places, folder: str, shown: str, run: dict[str, Any], wire: Any
    ) -> None:
        python = prepare_python(places, run, lambda text: wire.event(say=text))
        self.port = free_port()
        self._log = os.path.join(folder, "log")
        kind = run["kind"]
        if not _has(python, MODULES[kind]):
            package = PACKAGES[kind]
            raise Refusal(
                "BoxUnfit", f"{python} has no {package}", f"{python} -m pip install {package}"
            )
        arguments = self._arguments(kind, folder, shown, places, run)
        with open(self._log, "wb") as log:
            self._child = subprocess.Popen(
                [python, "-m", MODULES[kind], *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=shown,
                env={**os.environ, "GPUBOX_INPUT": places.input, "GPUBOX_OUTPUT": shown},
                start_new_session=True,
                preexec_fn=_end_with_us,
            )

    def _arguments(
        self, kind: str, folder: str, shown: str, places: Places, run: dict[str, Any]
    ) -> list[str]:
        if kind == "tensorboard":
            return ["--logdir", shown, "--host", "127.0.0.1", "--port", str(self.port)]
        path = os.path.join(folder, "jupyter.json")
        write_json(path, jupyter_settings(run["token"], self.port, "127.0.0.1", shown))
        return ["--config", path, *(["--allow-root"] if os.getuid() == 0 else [])]

    def ended(self) -> bool:
        return self._child.poll() is not None

    def last_words(self) -> str:
        with open(self._log, "rb") as log:
            lines = log.read()[-4096:].decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    def stop(self) -> None:
        """The server and its kernels: the whole session."""
        for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(self._child.pid, number)
                self._child.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _end_with_us() -> None:
    """In the child, before exec: it ends when its parent does, however that ends (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _has(python: str, module: str) -> bool:
    script = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    done = subprocess.run([python, "-c", script, module.split(".")[0]], stdin=subprocess.DEVNULL)
    return done.returncode == 0
