"""Forks workload processes from one that has TensorFlow imported: a start takes 1 s instead of 5.

Reads one JSON line per start, {"arguments": […], "environment": {…}, "output": PATH}, and answers
with the child's process id. Nothing of TensorFlow's runtime is up before the fork.
"""

import json
import os
import sys

import tensorflow  # noqa: F401

from workload.__main__ import main


def child(order):
    os.environ.update(order["environment"])
    file = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        code = main(order["arguments"])
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
