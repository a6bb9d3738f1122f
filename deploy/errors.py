"""Every error that a person sees: one line, a hint what to do next, an exit code of its own."""

from __future__ import annotations

from typing import ClassVar


class KitError(Exception):
    """What went wrong and where (`message`), what to do next (`hint`), and the exit code."""

    exit_code: ClassVar[int] = 1
    meaning: ClassVar[str] = "an error inside the kit: please report it with --debug's output"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.on_the_box = ""  # a traceback from there, for --debug


class UsageError(KitError):
    exit_code = 2
    meaning = "the command line asks for something that does not exist or does not fit together"


class ConfigError(KitError):
    exit_code = 3
    meaning = "gpubox.toml holds a wrong value or an unknown key (the path is named)"


class HostKeyError(KitError):
    exit_code = 10
    meaning = "the box's host key is unknown and nobody could be asked, or it has changed"


class ConnectError(KitError):
    exit_code = 11
    meaning = "no SSH connection: name, port, network or login"


class LinkLost(KitError):
    exit_code = 12
    meaning = "the connection died or froze; the same command goes on where it was"


class BoxUnfit(KitError):
    exit_code = 20
    meaning = "the box lacks something the kit needs (Python, a folder, a program)"


class KilledThere(BoxUnfit):
    """Our program on the box was killed in the middle: its memory is full, or somebody did it."""


class EngineError(KitError):
    exit_code = 21
    meaning = "the container engine is missing, stopped, too old or refused"


class GpuError(KitError):
    exit_code = 22
    meaning = "a GPU was asked for and can't be used; nothing was trained on the CPU instead"


class ImageError(KitError):
    exit_code = 23
    meaning = "the image is missing, does not fit the box, or could not be built or sent"


class NoSpace(KitError):
    exit_code = 24
    meaning = (
        "a file system is too small or full, in bytes or in inodes; nothing was left half-made"
    )


class DataError(KitError):
    exit_code = 30
    meaning = "the data set is empty, damaged, unsafe or not what it claims to be"


class TransferError(KitError):
    exit_code = 31
    meaning = "a transfer ended before it was whole; the same command goes on where it was"


class VerifyError(KitError):
    exit_code = 32
    meaning = "something does not have the checksum that it should have"


class RunFailed(KitError):
    exit_code = 40
    meaning = "the run ended otherwise than it should (the reason is named)"


class NoSuchRun(KitError):
    exit_code = 41
    meaning = "no such run, data set, version or checkpoint on the box"


class Busy(KitError):
    exit_code = 42
    meaning = "somebody else holds the lock (who, where and since when is named)"


class StopFailed(KitError):
    exit_code = 50
    meaning = "the box could not be stopped, started, or armed to stop by itself"


def all_errors() -> list[type[KitError]]:
    """Every kind of error, by exit code: the source of the table in docs/errors.md."""
    return sorted([KitError, *KitError.__subclasses__()], key=lambda kind: kind.exit_code)


def error_named(kind: str) -> type[KitError]:
    """The error class that the box names in its answer; KitError for a name not known here."""
    return next((each for each in all_errors() if each.__name__ == kind), KitError)
