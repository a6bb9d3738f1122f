"""The command line: one task per verb. `fab --list` shows them, `fab VERB --help` explains one."""

from __future__ import annotations

from typing import Any

from deploy.command import verb


@verb()
def facts(desk: Any) -> Any:
    """What a box is: system, folders, engine, GPUs."""
    from deploy.verbs.facts import facts

    return facts(desk)


@verb()
def doctor(desk: Any) -> Any:
    """Is a box ready for training: every check with its value and the remedy."""
    from deploy.verbs.doctor import doctor

    return doctor(desk)


@verb(name="which one: mnist")
def get(desk: Any, name: str = "mnist") -> Any:
    """Fetch a public data set by name to the laptop, checked by its checksums."""
    from deploy.verbs.get import get

    return get(desk, name)


@verb(
    "port", port="the box's port", local="the port on this machine (the same one, where it is free)"
)
def forward(desk: Any, port: int = 0, local: int = 0) -> Any:
    """Reach a port of the box from this machine, inside the SSH connection."""
    from deploy.verbs.forward import forward

    return forward(desk, port, local)


@verb(command="run this in the terminal instead of a login shell")
def shell(desk: Any, command: str = "") -> Any:
    """A terminal on the box."""
    from deploy.verbs.shell import shell

    return shell(desk, command)


@verb(
    "runs",
    runs="ids of fetched runs, or folders",
    out="the page to write",
    browser="open it where there is a browser",
)
def compare(desk: Any, runs: str = "", out: str = "compare.html", browser: bool = True) -> Any:
    """Curves and results of several runs side by side, in one page."""
    from deploy.verbs.compare import compare

    return compare(desk, runs, out, browser)


@verb(
    to="kubernetes or skypilot",
    out="the file to write (the screen without it)",
    args="more arguments for the program",
    image="an image that the cluster can pull",
    gpus="how many, or which: 2, L4, A100:8; 0 for none",
    workers="how many machines work on the one run",
    name="what the run is called there",
    claim="kubernetes: the volume claim that holds the data",
    bucket="skypilot: the bucket that keeps checkpoints",
)
def export(
    desk: Any,
    to: str = "",
    out: str = "",
    args: str = "",
    image: str = "",
    gpus: str = "",
    workers: int = 1,
    name: str = "",
    claim: str = "",
    bucket: str = "",
) -> Any:
    """The run as a file for Kubernetes or SkyPilot, where single boxes are outgrown."""
    from deploy.verbs.export import export

    asked = {"args": args, "image": image, "gpus": gpus, "workers": workers}
    return export(desk, to, out, **asked, name=name, claim=claim, bucket=bucket)


@verb(
    "path",
    path="a folder, or an archive (.tar, .tar.gz, .tar.xz, .tar.zst, .zip)",
    name="the data set's name; the path's last part if empty",
    layout="auto, packed or files",
    exclude="patterns to leave out, with commas between",
)
def upload(desk: Any, path: str = "", name: str = "", layout: str = "", exclude: str = "") -> Any:
    """Bring a data set to the box's /data: what is there already is not sent."""
    from deploy.verbs.upload import upload

    return upload(desk, path, name, layout, exclude)


@verb(
    "name",
    name="the data set; the one of [run] if empty",
    version="current, or the beginning of an ID",
    verify="read a staged copy again, and stage it anew where it is damaged",
)
def stage(desk: Any, name: str = "", version: str = "current", verify: bool = False) -> Any:
    """Copy a data set from the box's /data to its fast disk, verified."""
    from deploy.verbs.stage import stage

    return stage(desk, name, version, verify)
