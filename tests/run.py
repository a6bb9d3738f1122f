"""`make test`: both suites, in the environments that they need; one closing line, the worst exit code.

The workload's tests need TensorFlow and run in .venv-train; all others run in .venv, which has none,
two files of them side by side, since boxes boot and links time out while nothing computes. Real
boxes, engines and links share a machine with whatever else it does: a few failed tests are run once
more, one after another, and said by name as passed only at the second try; many are not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SUITES = (
    (".venv-train", ["tests/workload"], []),
    (
        ".venv",
        ["tests", "--ignore=tests/workload"],
        # in the order of tests/conftest.py: else the files with few tests, the long ones, are last
        ["--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder"],
    ),
)
FEW = 5
TESTS_FAILED = 1  # pytest's exit code


class Ended(NamedTuple):
    code: int
    passed: int
    failed: int
    skipped: int
    names: list[str]  # of what failed


def run(environment: str, words: list[str]) -> Ended:
    """One run of pytest, its output passed on as it comes."""
    command = [str(ROOT / environment / "bin" / "python"), "-m", "pytest", "-q", *words]
    last, names = "", []
    # Compiled modules are kept, as users have them: tests start the kit some thousand times.
    kept = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=ROOT, env=kept, stdout=pipe, stdin=nothing, text=True
    ) as suite:
        for line in suite.stdout or ():
            print(line, end="", flush=True)
            last = line if re.search(r"\d+ (passed|failed|error)", line) else last
            names += re.findall(r"^(?:FAILED|ERROR) (\S+)", line)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
        counts["failed" if word == "error" else word] += int(number)
    return Ended(suite.returncode, **counts, names=names)


def run_with_second_try(environment: str, words: list[str], side_by_side: list[str]) -> Ended:
    """The suite's end; the worse of two where a few tests were tried again."""
    first = run(environment, [*words, *side_by_side])
    if first.code != TESTS_FAILED or not 0 < first.failed <= FEW:
        return first
    print(f"{first.failed} failed: once more", flush=True)
    again = run(environment, [*words, "--last-failed", "--last-failed-no-failures", "none"])
    for name in sorted(set(first.names) - set(again.names)):
        print(f"passed only at the second try: {name}")
    passed = first.passed + again.passed
    return Ended(again.code, passed, again.failed, first.skipped, again.names)


def main(arguments: list[str]) -> int:
    ends = [run_with_second_try(where, [*words, *arguments], by) for where, words, by in SUITES]
    passed, failed, skipped = (sum(getattr(end, key) for end in ends) for key in Ended._fields[1:4])
    # the closing line of the whole: a runner's plain one
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return max(end.code for end in ends)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
