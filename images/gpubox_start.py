"""Imports TensorFlow sooner; comes with every start of Python in our images.

Without the garbage collector: the modules of TensorFlow live as long as the process, and the collector
looks through all of them again and again while they come (0.5 s) and once more as the interpreter
ends (1.3 s). It goes on as before once they are there, for what the program itself makes.

And without what nobody asks for: two thirds of the modules that `import tensorflow` runs are named by
one of its tables of names alone (tf.compat, tf.lite, tf.feature_column, …) or belong to Keras. A table
runs when it is first asked for something, as with importlib.util.LazyLoader, and Keras when it is
first imported, as `tf.keras` does by itself. What such modules register with TensorFlow as they run
(operations, gradients, operators of Tensor, …) is registered all the same: REGISTER names those that
do so. A test compares all registries with those of a plain import; hence only versions that it has
seen are imported like this, and GPUBOX_PLAIN_IMPORT=1 asks for all at once.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import RLock, get_ident
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

TABLES = "tensorflow._api.v2."
VERSIONS = ("tensorflow-2.21.", "tensorflow_cpu-2.21.")  # how their .dist-info begins
REGISTER = (
    "tensorflow.python.ops.weak_tensor_ops",  # operators of WeakTensor, assignment to variables
    "tensorflow.python.ops.linalg.linalg",  # the specs of LinearOperators, by name
    "tensorflow.python.distribute.values",  # the spec of PerReplica, by name
    "tensorflow.python.tpu.tpu",  # what control dependencies ask about replicated inputs
    "tensorflow.python.tpu.client.client",  # flags of absl, as does the next
    "tensorflow.python.tpu.tensor_tracer_flags",
    "tensorflow.python.training.queue_runner_impl",  # a collection of graphs, by name
    "tensorflow.python.profiler.internal.flops_registry",  # the FLOPs of operations
    "tensorflow.python.debug.lib.debug_gradients",  # gradients, as does the next
    "tensorflow.python.debug.lib.dumping_callback",
    "tensorflow.lite.experimental.microfrontend.python.ops.audio_microfrontend_op",  # an operation
    "tensorflow.python.distribute.experimental.rpc.rpc_ops",  # nothing: it is the one to import a NAMESAKE
)
# Packages that bear the name of a table and take its place below `tf` when they are first imported.
NAMESAKES = ("distribute", "lite")
# Registers what loads an optimizer of Keras 2 out of a SavedModel; too much for those who load none.
WITH = {"tensorflow.python.saved_model.load": "tensorflow.python.keras"}
# What the import system and those who look through sys.modules ask of any module.
ABOUT = {"__class__", "__file__", "__loader__", "__name__", "__package__", "__path__", "__spec__"}
ABOUT.add("__warningregistry__")


class Table(ModuleType):
    """A module that runs when it is first asked for what it holds, and is a plain one from then on."""

    def __getattribute__(self, name: str) -> object:
        if name not in ABOUT:
            state = ModuleType.__getattribute__(self, "__spec__").loader_state
            with state["lock"]:  # others wait until it has run; it itself may ask meanwhile
                if state["execute"] is not None:
                    run(self, state)
        return ModuleType.__getattribute__(self, name)


def run(table: ModuleType, state: dict[str, object]) -> None:
    """Run the table's own code; one that fails runs again when it is asked again."""
    execute, state["execute"] = state["execute"], None
    try:
        execute(table)  # type: ignore[operator]
    except BaseException:
        state["execute"] = execute
        raise
    table.__class__ = ModuleType


def postponed(spec: ModuleSpec) -> None:
    """Have the module of `spec` run when it is first asked for something."""
    spec.loader_state = {"lock": RLock(), "execute": spec.loader.exec_module}  # type: ignore[union-attr]

    def later(module: ModuleType) -> None:
        module.__class__ = Table

    spec.loader.exec_module = later  # type: ignore[union-attr, method-assign]


def followed(spec: ModuleSpec, name: str) -> None:
    """Have the module `name` imported once that of `spec` has run."""
    execute = spec.loader.exec_module  # type: ignore[union-attr]

    def both(module: ModuleType) -> None:
        execute(module)
        __import__(name)

    spec.loader.exec_module = both  # type: ignore[union-attr, method-assign]


def refused(spec: ModuleSpec) -> None:
    """Have the module of `spec` not run now; TensorFlow goes on without, and it can be imported later."""

    def no(module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} waits until it is asked for")

    spec.loader.exec_module = no  # type: ignore[union-attr, method-assign]


def whole(spec: ModuleSpec, finder: TensorFlow) -> None:
    """Have TensorFlow run without the collector, and after it what registers something."""
    execute = spec.loader.exec_module  # type: ignore[union-attr]

    def without_collecting(module: ModuleType) -> None:
        was_on = gc.isenabled()
        gc.disable()
        try:
            finder.thread = get_ident()
            execute(module)
            finder.thread = 0
            if finder.postpones:
                register(module)
        finally:
            finder.thread = 0
            gc.freeze()
            if was_on:
                gc.enable()

    spec.loader.exec_module = without_collecting  # type: ignore[union-attr, method-assign]


def register(tensorflow: ModuleType) -> None:
    """Import what registers something; what it puts in the place of a table makes way for that again."""
    kept = {name: getattr(tensorflow, name) for name in NAMESAKES if hasattr(tensorflow, name)}
    for name in REGISTER:
        __import__(name)
    for name, table in kept.items():
        setattr(tensorflow, name, table)


def known(origin: str) -> bool:
    """Whether the TensorFlow whose __init__.py this is has a version of VERSIONS."""
    site = os.path.dirname(os.path.dirname(origin))
    return any(
        name.startswith(VERSIONS) for name in os.listdir(site) if name.endswith(".dist-info")
    )


class TensorFlow:
    """Finds its modules as they would be found without this, and says when they run."""

    postpones = False
    thread = 0  # that runs tensorflow/__init__.py just now

    def find_spec(
        self, name: str, path: list[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name == "tensorflow":
            spec = PathFinder.find_spec(name)
            if spec and spec.loader and spec.origin:
                plain = os.environ.get("GPUBOX_PLAIN_IMPORT", "") not in ("", "0")
                self.postpones = not plain and known(spec.origin)
                whole(spec, self)
            return spec
        if not self.postpones:
            return None
        table = name.startswith(TABLES) and name.count(".") == TABLES.count(".")
        unasked = name == "keras" and self.thread == get_ident()
        if not (table or unasked or name in WITH):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            if name in WITH:
                followed(spec, WITH[name])
            else:
                (postponed if table else refused)(spec)
        return spec


sys.meta_path.insert(0, TensorFlow())
