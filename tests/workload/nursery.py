"""Forks workload processes from one that has TensorFlow imported: a start takes 1 s instead of 5.

Reads one JSON line per start, {"arguments": […], "environment": {…}, "out": PATH, "err": PATH},
answers with the child's process id, and with its exit code when it ends (negative: the signal).
Nothing of TensorFlow's runtime is up before the fork.
"""

import json
import os
import sys
import traceback

import tensorflow  # noqa: F401

from workload.__main__ import main


def child(order):
    os.environ.update(order["environment"])
    for number, path in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    code = 1
    try:
        code = main(order["arguments"])
    except SystemExit as end:  # argparse
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def serve():
    print("ready", flush=True)
    for text in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(text))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


serve()
