"""For wheels made with ``--patch-loader`` alone: every call of torch and importlib in the process opens what fits.

It is for packages that hand the path of a library to another package, so that no call in their own Python can be
changed. A guard's path then stands for the library behind it; other paths are left alone.
"""

from __future__ import annotations

import functools
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

from .opening import resolve


def patch_loader() -> None:
    """Wrap ``torch.ops.load_library`` and Python's loader of modules; a second call changes nothing."""
    import torch

    load, create = torch.ops.load_library, ExtensionFileLoader.create_module
    if getattr(load, "opens_guards", False):
        return

    @functools.wraps(load)
    def load_library(path: Any) -> None:
        load(resolve(path))  # type: ignore[no-untyped-call]  # functools.wraps loses it

    @functools.wraps(create)
    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        spec.origin = resolve(spec.origin)
        return create(self, spec)

    vars(load_library)["opens_guards"] = True
    torch.ops.load_library = load_library  # type: ignore[method-assign]
    ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign]
