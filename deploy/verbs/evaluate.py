"""`fab evaluate`: the test accuracy of a checkpoint, on the box of its run or here at home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.effects.program import packed_program
from deploy.effects.pushing import checkpoint_at
from deploy.effects.settings import beside_config, root
from deploy.errors import UsageError
from deploy.verbs.desk import Desk


def evaluate(desk: Desk, checkpoint: str = "", data: str = "") -> list[dict[str, Any]]:
    """`checkpoint`: a folder here, or RUN, RUN/best, RUN/step_…, "" on the box."""
    if checkpoint and Path(checkpoint).expanduser().is_dir():
        return [_at_home(desk, Path(checkpoint).expanduser(), data)]
    run, _, step = checkpoint.partition("/")
    results = []
    for name in desk.hosts:
        with desk.open(name) as box:
            found = box.call("evaluate", run=run, step=step)
        _say(desk, found)
        results.append({"box": name, **found})
    return results


def _at_home(desk: Desk, folder: Path, data: str) -> dict[str, Any]:
    """In this machine's own image or Python, on the data set's folder of the config."""
    if desk.hosts != ["local"]:
        raise UsageError(f"{folder} is a folder of this machine", "evaluate it here: --host local")
    settings = desk.box("local")
    with desk.open("local") as box:
        found = box.call(
            "evaluate",
            path=str(checkpoint_at(folder.resolve())),
            data=str(_data_folder(desk, data)),
            runner=settings.runner,
            python=settings.python,
            code=packed_program(root() / "workload", None),
            requirements=_lock(),
        )
    _say(desk, found)
    return {"box": "local", **found}


def _data_folder(desk: Desk, data: str) -> Path:
    """The source of the data set here: a path, or a name of the config."""
    name = data or desk.config.run.data
    known = desk.config.data.get(name)  # type: ignore[call-overload]
    folder = beside_config(known.path) if known else Path(name).expanduser()
    if not name or not folder.is_dir():
        raise UsageError(f"no folder of test data: {folder}", "--data FOLDER, or fab get mnist")
    return folder.resolve()


def _lock() -> str:
    path = root() / "images" / "requirements-cpu.lock"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _say(desk: Desk, found: dict[str, Any]) -> None:
    accuracy = 100 * float(found["test_accuracy"])
    desk.show.say(
        f"step {found['step']}: {accuracy:.2f} % of {found['test_images']} test images right"
    )
