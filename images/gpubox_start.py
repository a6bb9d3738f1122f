"""Imports TensorFlow without the garbage collector; comes with every start of Python in our images.

The modules of TensorFlow live as long as the process, and the collector looks through all of them
again and again while they come (0.5 s) and once more as the interpreter ends (1.3 s). It goes on
as before once they are there, for what the program itself makes.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class TensorFlow:
    """Finds that one module, as it would be found without this, and wraps its execution."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def without_collecting(module: ModuleType) -> None:
                was_on = gc.isenabled()
                gc.disable()
                try:
                    execute(module)
                finally:
                    gc.freeze()
                    if was_on:
                        gc.enable()

            spec.loader.exec_module = without_collecting  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, TensorFlow())
