"""The command line: one task per verb. `fab --list` shows them, `fab VERB --help` explains one."""

from __future__ import annotations

from typing import Any

from fabric import task

from deploy.command import show_verbs, verb


@task(default=True)  # type: ignore[untyped-decorator]
def help(context: Any) -> None:
    """All verbs, by what one wants to do."""
    show_verbs()


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


@verb()
def bootstrap(desk: Any) -> Any:
    """Make a bare machine ready: engine, groups, folders, keeper; changes nothing twice."""
    from deploy.verbs.bootstrap import bootstrap

    return bootstrap(desk)


@verb(
    data="the data set: a name in gpubox.toml, or a folder (default: run.data)",
    args='arguments for the program, such as "--steps 2000"',
    gpus='how many GPUs, "all", or indexes such as "0,2"',
    device="auto, gpu or cpu",
    new="start another run even where one could go on",
    follow="stay and show the run's output",
    workers="boxes that train one model together, the chief first, with commas between",
)
def deploy(
    desk: Any,
    data: str = "",
    args: str = "",
    gpus: str = "",
    device: str = "",
    new: bool = False,
    follow: bool = False,
    workers: str = "",
) -> Any:
    """The whole way: look, arm the keeper, upload, image, stage, start, wait for the first step."""
    from deploy.plan.workers import worker_names

    if names := worker_names(workers, desk.config.run.workers):
        from deploy.verbs.workers import deploy_workers

        return deploy_workers(desk, names, data, args, gpus, device, new)
    from deploy.verbs.deploy import deploy

    return deploy(desk, data, args, gpus, device, new, follow)


@verb()
def demo(desk: Any) -> Any:
    """The whole way on this machine, in about three minutes: no GPU, SSH or Docker needed."""
    from deploy.verbs.demo import demo

    return demo(desk)


@verb("name", name="which one: mnist")
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


@verb(command="run this in the terminal instead of a shell", run="inside this run (id, or last)")
def shell(desk: Any, command: str = "", run: str = "") -> Any:
    """A terminal on the box, or inside a run."""
    from deploy.verbs.shell import shell

    return shell(desk, command, run)


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
    """Copy a data set from the box's /data to its fast disk, verified; the workload then looks at it."""
    from deploy.verbs.stage import stage

    return stage(desk, name, version, verify)


@verb(
    "name",
    name="only this data set",
    version="current, or the beginning of an ID",
    pin="keep this version until it is unpinned",
    unpin="let it go with the others",
    use="make this version the current one",
    remove="remove this version, or without --version the whole set",
    check="read a version on the data disk and hold it to its checksums",
)
def data(
    desk: Any,
    name: str = "",
    version: str = "",
    pin: bool = False,
    unpin: bool = False,
    use: bool = False,
    remove: bool = False,
    check: bool = False,
) -> Any:
    """The data sets on a box and their versions."""
    from deploy.verbs.data import data

    chosen = {"pin": pin, "unpin": unpin, "use": use, "remove": remove, "check": check}
    return data(desk, name, version, next((word for word, on in chosen.items() if on), ""))


# -- runs


@verb(
    args="more arguments for the program, in quotes",
    gpus='how many GPUs, "all", or which: "0,2", "gpu1"',
    device="auto, gpu or cpu",
    data="the data set; run.data of the config if empty",
    follow="stay, and print its output until it ends",
    from_="a checkpoint to begin from: a folder here, or RUN, RUN/best, RUN/step_… on the box",
)
def launch(
    desk: Any,
    args: str = "",
    gpus: str = "",
    device: str = "",
    data: str = "",
    follow: bool = False,
    from_: str = "",
) -> Any:
    """Start a run on a box; comes back when its first step is done."""
    from deploy.verbs.launch import launch

    return launch(desk, args, gpus, device, data, follow, from_)


@verb("run", run="its id; the newest if empty")
def resume(desk: Any, run: str = "") -> Any:
    """Start a stopped, interrupted or failed run again; it goes on where it was."""
    from deploy.verbs.launch import resume

    return resume(desk, run)


@verb(
    "run",
    run="one run in full, with its last lines",
    watch="look again and again, until Ctrl-C",
    every="seconds from one look to the next",
    deadline="seconds that a box of several may take to answer",
)
def status(
    desk: Any, run: str = "", watch: bool = False, every: float = 5.0, deadline: float = 10.0
) -> Any:
    """What runs and how far it is: one box in full (--host), else all of them, a line each."""
    from deploy.verbs.fleet import boxes_meant, fleet_status

    if (names := boxes_meant(desk, run, watch)) is not None:
        return fleet_status(desk, names, deadline, watch, every)
    from deploy.verbs.status import status

    return status(desk, run)


@verb(
    "run",
    run="its id; the newest if empty",
    lines="how many lines from the end",
    follow="go on until the run ends, over lost links",
)
def logs(desk: Any, run: str = "", lines: int = 100, follow: bool = False) -> Any:
    """A run's output."""
    from deploy.verbs.logs import logs

    return logs(desk, run, lines, follow)


@verb(
    "run",
    run="its id; the newest if empty",
    now="without any grace: work since its last checkpoint is lost",
    grace='how long it may take to save, such as "2m"',
)
def stop(desk: Any, run: str = "", now: bool = False, grace: str = "") -> Any:
    """End a run; it saves a checkpoint first."""
    from deploy.verbs.stop import stop

    return stop(desk, run, now, grace)


@verb("run", run="its id")
def rm(desk: Any, run: str = "") -> Any:
    """Delete a run that has ended, with its checkpoints, from the box."""
    from deploy.verbs.stop import remove

    return remove(desk, run)


@verb(
    "run",
    run="its id; the newest if empty",
    follow="go on until the run ends, over lost links",
    best="the checkpoint that is best by validation",
    last="the newest checkpoint (also without any flag)",
    all="every checkpoint that is there",
    logs_only="no checkpoint, the other files only",
    every='with --follow: how often, such as "5m"',
    to='the folder at home; "home" beside gpubox.toml if empty',
)
def fetch(
    desk: Any,
    run: str = "",
    follow: bool = False,
    best: bool = False,
    last: bool = False,
    all: bool = False,
    logs_only: bool = False,
    every: str = "",
    to: str = "",
) -> Any:
    """Bring checkpoints, logs and results home, whole and verified."""
    from deploy.verbs.fetch import fetch

    return fetch(desk, run, follow, best, last, all, logs_only, every, to)


@verb(force="even where its holder gave a sign of life just now")
def unlock(desk: Any, force: bool = False) -> Any:
    """Free a box's deploy lock whose holder is dead."""
    from deploy.verbs.unlock import unlock

    return unlock(desk, force)


@verb(
    "checkpoint",
    checkpoint="RUN, RUN/best, RUN/step_… on the box, or a folder here; the newest run if empty",
    data="for a folder here: the test data, a name of the config or a folder",
)
def evaluate(desk: Any, checkpoint: str = "", data: str = "") -> Any:
    """The test accuracy of a checkpoint."""
    from deploy.verbs.evaluate import evaluate

    return evaluate(desk, checkpoint, data)


@verb(
    model="cnn or bp",
    steps="how many steps on each",
    data="the data set on the box; run.data of the config if empty",
)
def bench(desk: Any, model: str = "cnn", steps: int = 200, data: str = "") -> Any:
    """The same steps on a box's CPU and GPU, side by side, as table and bar chart."""
    from deploy.verbs.bench import bench

    return bench(desk, model, steps, data)


@verb(days="how old an ended run has to be")
def gc(desk: Any, days: int = 30) -> Any:
    """Clear away old runs that are home, unused images, staged versions and left-overs."""
    from deploy.verbs.gc import gc

    return gc(desk, days)


@verb("shell", **{"shell": "bash, zsh or fish"})  # by name ruff takes it for subprocess's
def completion(desk: Any, shell: str = "") -> Any:
    """Print the script that completes verbs, flags, boxes, data sets and runs in your shell."""
    from deploy.verbs.completion import completion_script

    return completion_script(desk, shell)


@verb(kind="boxes, data or runs")
def names(desk: Any, kind: str = "boxes") -> Any:
    """What completion completes with."""
    from deploy.verbs.completion import names

    return names(desk, kind)


@verb(
    "run",
    run="its id; all runs of the box if empty",
    local="the port on this machine",
    browser="open it where there is a browser",
)
def tensorboard(desk: Any, run: str = "", local: int = 0, browser: bool = True) -> Any:
    """TensorBoard on the box, in this machine's browser, until Ctrl-C."""
    from deploy.verbs.view import tensorboard

    return tensorboard(desk, run, local, browser)


@verb(
    "run",
    run="its id: /output is that run's; a folder for notebooks if empty",
    local="the port on this machine",
    browser="open it where there is a browser",
)
def notebook(desk: Any, run: str = "", local: int = 0, browser: bool = True) -> Any:
    """A notebook on the box with /input and /output, in this machine's browser, until Ctrl-C."""
    from deploy.verbs.view import notebook

    return notebook(desk, run, local, browser)


@verb(
    stop_after='stop the box after so long without a sign of life: "45m", "1h30m", or "off"',
    remind_after="remind after so long (a third of --stop-after if only that is given)",
    max_unknown="patience with a sensor that does not answer, while no run is alive",
    max_hours='lifetime since the start, in hours, or "off"',
    max_cost='money cap in the box\'s currency, over restarts, or "off"',
    arm="arm the keeper with the rule of the config (deploy does it by itself)",
    disarm="end the keeper: nothing stops the box then",
    reset="forget what fab idle has set; the config's rule holds again",
    force="arm even where the stop can't be carried out (it then reminds only)",
    restart="start the keeper anew, with this kit's version of it",
    try_notice="send a test notice to the terminals and all channels",
)
def idle(
    desk: Any,
    stop_after: str = "",
    remind_after: str = "",
    max_unknown: str = "",
    max_hours: str = "",
    max_cost: str = "",
    arm: bool = False,
    disarm: bool = False,
    reset: bool = False,
    force: bool = False,
    restart: bool = False,
    try_notice: bool = False,
) -> Any:
    """Show or change when a box that does nothing is stopped."""
    from deploy.verbs.idle import idle

    limits = {"stop_after": stop_after, "remind_after": remind_after, "max_unknown": max_unknown}
    caps = {"max_hours": max_hours, "max_cost": max_cost}
    ways = {"arm": arm, "disarm": disarm, "reset": reset, "force": force, "restart": restart}
    return idle(desk, {**ways, "try_notice": try_notice}, {**limits, **caps})


@verb("time", time='how long: "2h"; words after it say why', why="a word on why", off="end it")
def hold(desk: Any, time: str = "1h", why: str = "", off: bool = False) -> Any:
    """Keep a box awake for a while, whatever it does."""
    from deploy.verbs.hold import hold

    return hold(desk, time, why, off)


@verb(yes="don't ask")
def down(desk: Any, yes: bool = False) -> Any:
    """Stop a box: its runs are saved first, and it is made sure that it is off."""
    from deploy.verbs.down import down

    return down(desk, yes)


@verb()
def up(desk: Any) -> Any:
    """Start a box by its start command, and wait until SSH answers."""
    from deploy.verbs.up import up

    return up(desk)


@verb()
def cost(desk: Any) -> Any:
    """Hours and money per box, day and run, with the share that was idle."""
    from deploy.verbs.cost import cost

    return cost(desk)


@verb(every="seconds between two looks", once="look once and end")
def watch(desk: Any, every: float = 30.0, once: bool = False) -> Any:
    """Notices on this desktop before a box stops, a snooze, and stops from this side."""
    from deploy.verbs.watch import watch

    return watch(desk, every, once)


@verb("device", device="cpu, gpu or notebook")
def build(desk: Any, device: str = "cpu") -> Any:
    """Build this clone's image: here, or with --host on the box by its own line."""
    from deploy.verbs.build import build

    return build(desk, device)


@verb(
    "device",
    device="cpu, gpu or notebook",
    image="another image, by name",
    from_="the box that has it (this machine's engine if empty)",
)
def ship(desk: Any, device: str = "cpu", image: str = "", from_: str = "") -> Any:
    """Bring an image to a box without a registry: only layers that it lacks, verified."""
    from deploy.verbs.ship import ship

    return ship(desk, device, image, from_)
