"""The keeper: its errors over random days, the money it saves, its own cost: `python -m bench.keeper`.

--quick   1,000 days instead of 10,000, and 40 looks of a real keeper instead of 200
--json    figures as JSON        --check   exit 1 where a target is missed
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.days import PRICE, Total, simulate
from bench.targets import shortfalls
from deploy.effects.bundle import onbox_bundle
from deploy.onbox.places import Places
from deploy.onbox.runs import claim

ROOT = Path(__file__).resolve().parent.parent
POLL = 15.0  # seconds, the default
RUN = "20261130-0931-cnn-ffff"


def days(count: int) -> Total:
    """All days, on all cores."""
    part = 250
    with ProcessPoolExecutor() as pool:
        parts = list(pool.map(simulate, range(0, count, part), [part] * (count // part)))
    sums = [sum(each[place] for each in parts) for place in range(len(Total._fields) - 1)]
    return Total(*sums, [seed for each in parts for seed in each.bad_seeds])


def day_figures(count: int) -> dict[str, float]:
    began = time.process_time()
    total = days(count)
    if total.bad_seeds:
        print(f"days with an error: {total.bad_seeds[:20]}", file=sys.stderr)
    nothing = total.days * 24 * PRICE
    return {
        "keeper.days": total.days,
        "keeper.stops": total.stops,
        "keeper.stopped_at_work": total.wrongly,
        "keeper.left_idle": total.late,
        "keeper.over_cap": total.over_cap,
        "keeper.money_without_a_rule": nothing / total.days,
        "keeper.money": total.hours * PRICE / total.days,
        "keeper.saved": 1 - total.hours * PRICE / nothing,
        "keeper.gpu_only.money": total.gpu_only_hours * PRICE / total.days,
        "keeper.gpu_only.stopped_at_work": total.gpu_only_wrongly,
        "keeper.simulation_seconds": time.process_time() - began,
    }


def own_cost(looks: int) -> dict[str, float]:
    """A real keeper at one look a second, with a run alive and twenty ended ones: its memory, and
    its processor time a look as a share of one core at a look every 15 s."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        start = prepare(home)
        began = time.monotonic()
        claimed = claim(
            Places(*[str(home / n) for n in ("data", "input", "data/runs", "")], []), RUN
        )
        assert claimed.__enter__()  # as the supervisor of the living run would hold it
        keeper = subprocess.Popen(start["command"], env=start["env"], stderr=subprocess.DEVNULL)
        try:
            wait_for(home / "keeper" / "status.json")
            time.sleep(5)
            first, since = cpu_seconds(keeper.pid), looks_taken(home)
            time.sleep(looks)
            used, taken = cpu_seconds(keeper.pid) - first, looks_taken(home) - since
            memory = memory_mib(keeper.pid)
        finally:
            keeper.terminate()
            keeper.wait(10)
            claimed.__exit__(None, None, None)
    assert taken > looks / 2, f"only {taken:.0f} looks in {time.monotonic() - began:.0f} s"
    return {
        "keeper.memory_mib": memory,
        "keeper.cpu_ms_a_look": used / taken * 1000,
        "keeper.share_of_a_core": used / taken / POLL,
    }


def prepare(home: Path) -> dict[str, Any]:
    bundle = onbox_bundle()
    pyz = home / bundle.name
    pyz.write_bytes(bundle.content)
    for name in ("keeper", "data", "input", "data/runs"):
        (home / name).mkdir(mode=0o700)
    env = {**os.environ, "GPUBOX_HOME": str(home), "HOME": str(home)}
    write_runs(home, env)
    rule = {"enabled": True, "remind_after": 6e5, "stop_after": 9e5, "poll": 1.0}
    limits = {"stalled_after": 3600, "gpu_below": 5, "cpu_below": 15}
    armed = {
        "schema": 1,
        "box": "bench",
        "rule": {**rule, "max_unknown": 9e5, "price_per_hour": 1.0},
        "limits": {**limits, "net_below": 1, "disk_below": 10},
        "stop": {"how": "report", "effect": ""},
        "grace": 5,
        "folders": {"data": str(home / "data"), "input": str(home / "input")},
    }
    (home / "keeper" / "rule.json").write_text(json.dumps(armed))
    env.update(fake_driver(home))
    command = [sys.executable, str(pyz), "keeper"]
    if "LD_LIBRARY_PATH" in env:  # the one thing that a machine without a GPU has to be told
        on_the_bus = (
            f"import sys; sys.path.insert(0, {str(pyz)!r}); from onbox import sensors_gpu, keeper"
        )
        on_the_bus += "; sensors_gpu.on_the_bus = lambda: True; sys.exit(keeper.keep())"
        command = [sys.executable, "-c", on_the_bus]
    return {"command": command, "env": env}


def write_runs(home: Path, env: dict[str, str]) -> None:
    """Twenty runs that have ended and one that is alive, as their supervisors leave them."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.keeper.test_sensors import make_run\n"
        "from deploy.onbox.places import Places\n"
        "places = Places(*(sys.argv[2] + each for each in ('/data', '/input', '/data/runs', '')), [])\n"
        "for n in range(20): make_run(places, f'20261130-0930-cnn-{n:04x}', 'finished')\n"
        f"make_run(places, {RUN!r})\n"
    )
    command = [sys.executable, "-c", script, str(ROOT), str(home)]
    subprocess.run(command, env=env, check=True)


def fake_driver(home: Path) -> dict[str, str]:
    """The fake NVML where this machine has a compiler, so that the GPU's child is counted too."""
    if not shutil.which("cc"):
        return {}
    library = home / "lib" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    source = str(ROOT / "tests" / "fakes" / "libnvidia-ml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), source], check=True)
    return {"LD_LIBRARY_PATH": str(library.parent)}


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.1)


def looks_taken(home: Path) -> float:
    """Looks come at one a second; the moment of the last one counts them."""
    return float(json.loads((home / "keeper" / "status.json").read_text())["at"])


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, its living children and those it has collected."""
    ticks = 0
    for each in tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    """The keeper's resident memory, shared libraries included, and what its children have of
    their own (a fork shares the rest)."""
    total = sizes(pid)["Rss"]
    for each in tree(pid)[1:]:
        own = sizes(each)
        total += own["Private_Clean"] + own["Private_Dirty"]
    return total / 1024


def sizes(pid: int) -> dict[str, int]:
    """KiB by kind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def main() -> int:
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--json", action="store_true")
    ask.add_argument("--check", action="store_true")
    asked = ask.parse_args()
    figures = own_cost(40 if asked.quick else 200)
    figures.update(day_figures(1000 if asked.quick else 10_000))
    for name, value in figures.items():
        print(f"{name:40} {value:12.4g}", file=sys.stderr)
    if asked.json:
        print(json.dumps(figures, indent=1))
    missed = shortfalls(figures)
    print("\n".join(missed), file=sys.stderr)
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
