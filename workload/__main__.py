"""The command line of the workload: `python -m workload cnn|bp|train|check|evaluate|compare`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workload import errors, flags

EXIT_CODES = "exit codes:\n" + "\n".join(f"  {n:3}  {text}" for n, text in errors.MEANINGS.items())


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    main = argparse.ArgumentParser("workload", description=__doc__, epilog=EXIT_CODES)
    main.formatter_class = raw
    verbs = main.add_subparsers(dest="verb", required=True, metavar="VERB")
    for program, text in (("cnn", "the convolutional net"), ("bp", "the BP network")):
        verb = verbs.add_parser(program, help=f"train {text}", description=f"Trains {text}.")
        verb.set_defaults(model=program)
        flags.add_flags(verb, program)
    verbs.add_parser("train", help="the same as `--model cnn` or `--model bp`", add_help=False)
    check = verbs.add_parser("check", help="look at the data set, without TensorFlow or a GPU")
    check.add_argument("--classes", type=int, default=0, help="number of classes; 0: by the labels")
    evaluate = verbs.add_parser("evaluate", help="test accuracy of one checkpoint folder")
    evaluate.add_argument("checkpoint", type=Path, help="a folder step_…")
    evaluate.add_argument("--json", action="store_true", help="one JSON document instead of words")
    evaluate.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    compare = verbs.add_parser("compare", help="the same steps on CPU and GPU, side by side")
    compare.add_argument("--model", choices=tuple(flags.PROGRAMS), default="cnn")
    compare.add_argument("--steps", type=int, default=200, help="steps on each (default: 200)")
    compare.add_argument("--json", action="store_true", help="one JSON document instead of words")
    return main


def main(argv: list[str]) -> int:
    """Runs one verb; returns the exit code. Errors are one line on stderr."""
    arguments = parser().parse_args(_plain(argv))
    try:
        return _run(arguments)
    except errors.WorkloadError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.code


def _plain(argv: list[str]) -> list[str]:
    """`train --model cnn …` as `cnn …`."""
    if argv[:1] != ["train"]:
        return argv
    chooser = argparse.ArgumentParser("workload train", add_help=False)
    chooser.add_argument("--model", choices=tuple(flags.PROGRAMS), required=True)
    chosen, rest = chooser.parse_known_args(argv[1:])
    return [chosen.model, *rest]


def _run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "check":
        from workload.check import check

        return check(arguments.classes)
    if arguments.verb == "evaluate":
        from workload.evaluate import evaluate

        return evaluate(arguments.checkpoint, arguments.json, arguments.device)
    if arguments.verb == "compare":
        from workload.compare import compare

        return compare(arguments.model, arguments.steps, arguments.json)
    from workload.train import train

    return train(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
