"""Why a run ended: one table of what is known, and what is made of it."""

import pytest

from deploy.onbox.endings import Facts, why_ended

IDLE = {"by": "idle", "then": "interrupted"}
USER = {"by": "the user", "then": "stopped"}
FULL = ("OSError: [Errno 28] No space left on device",)
TABLE = [
    # facts, state, kind, a part of the text
    (Facts(0), "finished", "finished", "finished"),
    (Facts(75), "interrupted", "interrupted", "exit 75"),
    (Facts(1, tail=("Traceback", "KeyError: 'x'")), "failed", "exit-code", "exit code 1: KeyError"),
    (Facts(137), "failed", "exit-code", "killed by signal 9"),
    (Facts(-11), "failed", "exit-code", "killed by signal 11"),
    # an intent decides, whatever the exit code
    *[
        (Facts(code, USER), "stopped", "stopped", "by the user")
        for code in (0, 75, 143, 137, -15, 1)
    ],
    *[(Facts(code, IDLE), "interrupted", "stopped", "by idle") for code in (0, 75, 143, 137, None)],
    (Facts(1, IDLE), "interrupted", "stopped", "by idle, but ended with exit code 1"),
    (Facts(1, IDLE, free_bytes=0), "interrupted", "stopped", "with the disk of the runs full"),
    (Facts(137, USER), "stopped", "stopped", "the work since its last checkpoint is lost"),
    (Facts(0, USER, finished=True), "finished", "finished", "just as it was to be stopped"),
    (Facts(75, USER, finished=True), "stopped", "stopped", "by the user"),
    # memory, also of a child whose parent ends well
    (Facts(-9, out_of_memory=1), "failed", "out-of-memory", "lack of memory"),
    (Facts(137, out_of_memory=1), "failed", "out-of-memory", "lack of memory"),
    (Facts(0, out_of_memory=1), "failed", "out-of-memory", "a child process"),
    (Facts(0, out_of_memory=1, finished=True), "finished", "finished", "a child process"),
    (Facts(1, tail=("ResourceExhaustedError: OOM",)), "failed", "gpu-memory", "GPU's memory"),
    # the disk
    (Facts(75, free_bytes=0), "interrupted", "disk-full", "full"),
    (Facts(75, tail=FULL), "interrupted", "disk-full", "full"),
    (Facts(1, tail=FULL), "failed", "disk-full", "full"),
    (Facts(1, free_bytes=1 << 40), "failed", "exit-code", "exit code 1"),
    # the box, the engine, the supervisor
    (Facts(None, rebooted=True), "interrupted", "reboot", "rebooted"),
    (Facts(137, engine_lost=True), "interrupted", "engine", "engine"),
    (Facts(None), "interrupted", "lost", "supervisor was away"),
    (Facts(None, finished=True), "finished", "finished", "supervisor was away"),
    # GPUs and the workload's own codes
    (Facts(1, lost_gpus=("GPU-1",)), "failed", "gpu-lost", "GPU-1"),
    (Facts(1, tail=("CUDA_ERROR_LAUNCH_FAILED: x",)), "failed", "gpu-lost", "the GPU failed"),
    (Facts(70, tail=("loss is nan",)), "failed", "nan", "NaN"),
    (Facts(69), "failed", "no-gpu", "GPU"),
    (Facts(65, tail=("labels: bad magic",)), "failed", "data", "labels: bad magic"),
    (Facts(74), "failed", "checkpoint", "checkpoint"),
    (Facts(78), "failed", "arguments", "other arguments"),
    (Facts(73, tail=("process 7 trains in this folder",)), "interrupted", "in-use", "process 7"),
    (Facts(73, tail=("/output can't be written",)), "failed", "exit-code", "can't be written"),
]


@pytest.mark.parametrize("facts,state,kind,text", TABLE)
def test_each_ending_is_told_apart(facts, state, kind, text):
    ending = why_ended(facts)
    assert (ending.state, ending.kind) == (state, kind)
    assert text in ending.text
    assert "\n" not in ending.text
