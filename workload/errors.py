"""How the workload ends: its exit codes, and the errors that lead to them."""

from __future__ import annotations

FINISHED = 0
USAGE = 2
DATA = 65
GPU_MISSING = 69
NOT_FINITE = 70
MEMORY = 71
IN_USE = 73
CHECKPOINT = 74
INTERRUPTED = 75
CHANGED = 78

MEANINGS = {
    FINISHED: "finished, or was finished before",
    USAGE: "wrong arguments",
    DATA: "the data set is missing, damaged or not what its header says",
    GPU_MISSING: "a GPU was required and TensorFlow does not see it",
    NOT_FINITE: "the loss became NaN or infinite; nothing of it was saved",
    MEMORY: "the memory of the GPU, or of the machine, did not suffice",
    IN_USE: "the output folder can't be used: another trainer works in it",
    CHECKPOINT: "there are checkpoints, and none of them can be read",
    INTERRUPTED: "stopped by a signal or a full disk; the same command resumes",
    CHANGED: "the checkpoint was made with other model arguments",
}


class WorkloadError(Exception):
    """One line for the person (what, where, what to do next) and the exit code for the kit."""

    code = 1


class DataError(WorkloadError):
    """The data set can't be trained on."""

    code = DATA


class GpuMissing(WorkloadError):
    """A GPU was asked for and is not usable."""

    code = GPU_MISSING


class NotFinite(WorkloadError):
    """The loss is NaN or infinite."""

    code = NOT_FINITE


class OutOfMemory(WorkloadError):
    """A tensor did not fit any more."""

    code = MEMORY


class OutputInUse(WorkloadError):
    """Another trainer writes into the same output folder."""

    code = IN_USE


class CheckpointError(WorkloadError):
    """No checkpoint can be read although there are some."""

    code = CHECKPOINT


class Interrupted(WorkloadError):
    """Ended early in an orderly way; the same command goes on."""

    code = INTERRUPTED


class WorkerLost(WorkloadError):
    """Another worker of a distributed run ended; all resume together."""

    code = INTERRUPTED


class ChangedArguments(WorkloadError):
    """The run on disk was started with other arguments."""

    code = CHANGED
