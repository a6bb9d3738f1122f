"""`make test`: both suites, in the environments that they need; one closing line, the worst exit code.

The workload's tests need TensorFlow and run in .venv-train; all others run in .venv, which has none.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = (
    (".venv-train", ["tests/workload", "-p", "no:cacheprovider"]),
    (".venv", ["tests", "--ignore=tests/workload"]),
)


def main(arguments: list[str]) -> int:
    worst, counts = 0, {"passed": 0, "failed": 0, "skipped": 0}
    for environment, words in SUITES:
        command = [str(ROOT / environment / "bin" / "python"), "-m", "pytest", "-q", *words]
        last = ""
        with subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as suite:
            for line in suite.stdout:
                print(line, end="", flush=True)
                last = line if re.search(r"\d+ (passed|failed|error)", line) else last
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
            counts["failed" if word == "error" else word] += int(number)
        worst = max(worst, suite.returncode)
    # the closing line of the whole: a runner's plain one
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
