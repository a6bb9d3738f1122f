"""What the modules of TensorFlow have registered with each other; runs in an image.

    registered.py              print all of it as JSON
    registered.py TABLE… <ALL  what of ALL is missing after the import, and after the first use of each
                               TABLE (a module of tensorflow._api.v2): {TABLE: {registry: [entry]}}

Registries are Python's dicts, lists and sets in modules and classes, what they hold by name; whether
a variable of a module is set; the attributes of classes; and TensorFlow's operations, flags aside.
"""

import json
import os
import sys
from types import FunctionType, ModuleType

import tensorflow
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework.registry import Registry

LOOKED_AT = ("tensorflow.", "absl.flags", "google.", "numpy.", "ml_dtypes.")
# Numbered by address, or filled by use.
NOT_SAID = (
    "_by_module",
    "_module_ids",
    "_cache",
    "Cache",
    "_HIDDEN_ATTRIBUTES",
    "_pb2",
    "_classes",
)
Registered = dict[str, list[str]]


def named(entry: object) -> str:
    """What an entry is called, the same in each process."""
    if isinstance(entry, type | FunctionType):
        return f"{entry.__module__}.{entry.__qualname__}"
    if isinstance(entry, tuple | frozenset):
        return "(" + ",".join(sorted(map(named, entry))) + ")"
    if isinstance(entry, str | int | float | bytes | None):
        return repr(entry)[:120]
    return f"<{type(entry).__module__}.{type(entry).__name__}>"


class Notes:
    """Everything that is registered, once each."""

    def __init__(self) -> None:
        self.all: Registered = {}
        self._seen: set[int] = set()

    def note(self, where: str, value: object, depth: int = 0) -> None:
        if any(words in f"{where} {named(value)}" for words in NOT_SAID):
            return
        if id(value) in self._seen:
            return
        if isinstance(value, dict | list | set):
            self._seen.add(id(value))
            self.all[where] = sorted(named(entry) for entry in list(value))
            for key, each in list(value.items()) if isinstance(value, dict) else []:
                if isinstance(each, dict | list | set) and depth < 2:
                    self.note(f"{where}[{named(key)}]", each, depth + 1)
        elif isinstance(value, type):
            self._seen.add(id(value))
            kept = {key: each for key, each in vars(value).items() if not key.startswith("_abc")}
            self.all[f"class {named(value)}"] = sorted(
                f"{key} {named(each)}" for key, each in kept.items()
            )
            for key, each in list(vars(value).items()):
                if isinstance(each, dict | list | set):
                    self.note(f"{named(value)}.{key}", each, depth + 1)
        elif isinstance(value, Registry):
            self.all[where] = sorted(map(named, value.list()))
        elif value is None or isinstance(value, bool | FunctionType):
            self.all[f"variable {where}"] = [named(value)]
        elif type(value).__module__.startswith(LOOKED_AT) and isinstance(
            getattr(value, "__dict__", None), dict
        ):
            self._seen.add(id(value))
            for key, each in list(vars(value).items()):
                if isinstance(each, dict | list | set):
                    self.note(f"{where}.{key}", each, depth + 1)


def registered() -> Registered:
    """{registry: names of what it holds}, of the modules that are there, and their names."""
    notes = Notes()
    modules = {key: each for key, each in sys.modules.items() if isinstance(each, ModuleType)}
    for name, module in modules.items():
        if name.startswith(LOOKED_AT) and not name.startswith("tensorflow._api"):
            for key, value in list(vars(module).items()):
                if not (key.startswith("__") or isinstance(value, ModuleType)):
                    notes.note(f"{name}:{key}", value)
    operations = op_def_pb2.OpList()
    operations.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {
        **notes.all,
        "operations": sorted(each.name for each in operations.op),
        "modules": sorted(modules),
        "tensorflow": dir(tensorflow),
        "tables": tables(),
    }


def tables() -> list[str]:
    """Each table and what stands below `tf` by its name; Keras binds one of them anew."""
    names = [name.rsplit(".")[-1] for name in sys.modules if name.startswith("tensorflow._api.v2.")]
    bound = {name: getattr(tensorflow, name, None) for name in {*names} - {"experimental"}}
    return sorted(
        f"{name} {each.__name__}"
        for name, each in bound.items()
        if isinstance(each, ModuleType) and f"tensorflow._api.v2.{name}" in sys.modules
    )


def missing(everything: Registered) -> Registered:
    """What of it is not registered now, but for entries of lists that name a module that is not there."""
    now = registered()
    absent = [name + "." for name in {*everything["modules"]} - {*now["modules"]}]
    lost: Registered = {}
    for where, entries in everything.items():
        if where in now and where != "modules" and now[where] != entries:
            gone = [each for each in entries if each not in now[where]]
            if not where.startswith(("class ", "variable ")):
                gone = [each for each in gone if not any(name in each for name in absent)]
            lost.update({where: gone} if gone else {})
    return lost


def after_use(table: str, everything: Registered) -> Registered:
    """`missing` in a child process that has asked the table for its names."""
    reading, writing = os.pipe()
    if not os.fork():
        names = dir(sys.modules["tensorflow._api.v2." + table])
        answer = {**missing(everything), "names": names}
        with open(writing, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        answer = json.load(file)
    os.wait()
    return dict(answer)


def main(tables: list[str]) -> None:
    if not tables:
        names = [name for name in sys.modules if name.startswith("tensorflow._api.v2.")]
        names = [name for name in names if name.count(".") == 3]
        kept = {name.rsplit(".")[-1]: dir(sys.modules[name]) for name in names}
        print(json.dumps({"registered": registered(), "tables": kept}))
        return
    everything = json.load(sys.stdin)["registered"]
    found = {"": missing(everything)}
    print(json.dumps({**found, **{table: after_use(table, everything) for table in tables}}))


main(sys.argv[1:])
