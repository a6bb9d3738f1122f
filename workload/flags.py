"""Every flag of the two programs, with its default and its help line: one table, read by all."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """A flag. `recipe`: it decides the numbers, so a resumed run must have it unchanged."""

    name: str
    default: Any
    help: str
    recipe: bool = False
    choices: tuple[str, ...] | None = None


CNN = (
    Flag("learning_rate", 1e-4, "Adam's step size", True),
    Flag("beta1", 0.9, "Adam's decay of the first moment", True),
    Flag("beta2", 0.999, "Adam's decay of the second moment", True),
    Flag("epsilon", 1e-8, "Adam's guard against division by zero", True),
    Flag("batch", 50, "images in a step (over all GPUs together)", True),
    Flag("kernel", 5, "side of the convolutions' kernels", True),
    Flag("conv1", 32, "channels of the first convolution", True),
    Flag("conv2", 64, "channels of the second convolution", True),
    Flag("dense", 1024, "units of the dense layer", True),
    Flag("keep", 0.5, "share of the dense units that dropout keeps", True),
    Flag("stddev", 0.1, "standard deviation of the truncated normal initial weights", True),
    Flag("bias", 0.1, "initial biases", True),
    Flag("pixel_scale", 255.0, "pixels are divided by this", True),
    Flag("validation", 5000.0, "validation images: a count from the front, or a share < 1", True),
    Flag("split_seed", 7, "seed of the split, where validation is a share", True),
    Flag("steps", 20000, "train up to this step"),
    Flag("log_every", 100, "steps between training accuracies"),
    Flag("validate_every", 2000, "steps between validations"),
)

BP = (
    Flag("learning_rate", 0.005, "step size of gradient descent at the start", True),
    Flag("decay", 0.99, "the step size is multiplied by this every epoch, smoothly", True),
    Flag(
        "l2", 0.01, "weight of the penalty: half the sum of squares of both layers' weights", True
    ),
    Flag("average_decay", 0.99, "decay of the moving average of all weights and biases", True),
    Flag("batch", 200, "images in a step (over all GPUs together)", True),
    Flag("hidden", 500, "units of the hidden layer", True),
    Flag("stddev", 0.1, "standard deviation of the truncated normal initial weights", True),
    Flag("bias", 0.1, "initial biases", True),
    Flag("pixel_scale", 1.0, "pixels are divided by this (the program's own: raw 0..255)", True),
    Flag(
        "validation", 0.1, "validation images: a share < 1 as scikit-learn splits, or a count", True
    ),
    Flag("split_seed", 7, "seed of the split, where validation is a share", True),
    Flag("steps", 30000, "train up to this step"),
    Flag("log_every", 500, "steps between training accuracies"),
    Flag("validate_every", 500, "steps between validations of the averaged model"),
)

COMMON = (
    Flag("seed", 1, "seed of initial weights, data order and dropout", True),
    Flag("classes", 0, "number of classes; 0: as many as the labels say", True),
    Flag("image_size", 0, "side that pictures are scaled to; 0: that of the first one", True),
    Flag("precision", "float32", "arithmetic of layers", True, ("float32", "bfloat16", "float16")),
    Flag("save_every", 1000, "steps between checkpoints; 0: none by steps"),
    Flag("save_minutes", 10.0, "minutes between checkpoints at most; 0: none by time"),
    Flag("keep_last", 3, "newest checkpoints that are kept"),
    Flag("keep_every", 0, "keep for ever the checkpoints at multiples of this step; 0: none"),
    Flag(
        "device", "auto", "where to train; auto: GPU if there is one", False, ("auto", "cpu", "gpu")
    ),
    Flag("xla", False, "compile each step by XLA"),
    Flag("deterministic", "auto", "same bits every time", False, ("auto", "on", "off")),
    Flag("intra_threads", 0, "threads inside an operation; 0: as the checkpoint says, else cores"),
    Flag("inter_threads", 0, "operations at a time; 0: as the checkpoint says, else 2"),
    Flag("resident_mib", 2048, "data sets up to this size stay in (GPU) memory, others stream"),
    Flag("call_seconds", 1.0, "aim at this time for one call of the compiled loop"),
    Flag(
        "strategy", "auto", "several GPUs or workers", False, ("auto", "one", "mirrored", "workers")
    ),
    Flag("report", True, "write report.html at the end"),
)

PROGRAMS = {"cnn": CNN + COMMON, "bp": BP + COMMON}


def add_flags(parser: argparse.ArgumentParser, program: str) -> None:
    """Adds the program's flags to `parser`, grouped by whether a resumed run may change them."""
    fixed = parser.add_argument_group("the recipe (must stay the same when a run is resumed)")
    free = parser.add_argument_group("the run (may change at any time)")
    for flag in PROGRAMS[program]:
        group = fixed if flag.recipe else free
        option = "--" + flag.name.replace("_", "-")
        text = f"{flag.help} (default: %(default)s)"
        if isinstance(flag.default, bool):
            group.add_argument(
                option, action=argparse.BooleanOptionalAction, default=flag.default, help=flag.help
            )
        else:
            group.add_argument(
                option,
                type=_type(flag),
                default=flag.default,
                choices=flag.choices,
                help=text,
                metavar=None if flag.choices else flag.name.rsplit("_", 1)[-1].upper(),
            )


def _type(flag: Flag) -> Any:
    kind = type(flag.default)
    if kind is str:
        return str
    positive = flag.name in {"batch", "steps", "log_every", "validate_every", "keep_last"}

    def parse(text: str) -> Any:
        value = kind(text)
        if value < 0 or (positive and value == 0):
            raise argparse.ArgumentTypeError(f"must be {'positive' if positive else '0 or more'}")
        return value

    parse.__name__ = kind.__name__
    return parse


def recipe(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide the numbers, for the checkpoint."""
    flags = PROGRAMS[arguments.model]
    return {f.name: getattr(arguments, f.name) for f in flags if f.recipe}


def changes(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between a checkpoint's recipe and this command's, as `--flag was A, is B`."""
    names = sorted(set(saved) | set(now))
    return [
        f"--{name.replace('_', '-')} was {saved.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in names
        if saved.get(name) != now.get(name)
    ]
