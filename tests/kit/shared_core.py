"""Let guards that this process imports use precast's own core, so that a test can change what that finds here.

The copy that a wheel takes along is what other processes run, as in life.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from precast.build.alone import COPY


class _Shared(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=name.endswith(f".{COPY}")) if f".{COPY}" in name else None

    def exec_module(self, module: ModuleType) -> None:
        core = importlib.import_module("precast.core" + module.__name__.partition(f".{COPY}")[2])
        vars(module).update({name: value for name, value in vars(core).items() if not name.startswith("__")})


@contextmanager
def shared_core() -> Iterator[None]:
    """In this context a guard's copy of the core is the core of this process."""
    finder = _Shared()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if f".{COPY}" in name]:
            del sys.modules[name]
