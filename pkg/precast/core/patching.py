"""For wheels made with ``--patch-loader`` alone: every call of torch and importlib in the process opens what fits.

It is for packages that hand the path of a library to another package, so that no call in their own Python can be
changed. A guard's path then stands for the library behind it; other paths are left alone. Several packages may do so,
each with a core of its own: what lies in a package is for the core in that package.
"""

from __future__ import annotations

import functools
import os
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from .opening import resolve


def patch_loader() -> None:
    """Wrap ``torch.ops.load_library`` and Python's loader of modules; a second call changes nothing."""
    import torch

    load, create = torch.ops.load_library, ExtensionFileLoader.create_module
    cores: list[Path] = getattr(load, "cores", [])  # one list for the process, which functools.wraps hands on
    here = Path(os.path.realpath(__file__)).parent
    if here in cores:
        return
    cores.append(here)

    def ours(path: Any) -> Any:
        around = Path(os.path.realpath(path)).parents if isinstance(path, str | os.PathLike) else ()
        core = next((core for folder in around for core in cores if core.parent == folder), here)
        return resolve(path) if core == here else path

    @functools.wraps(load)
    def load_library(path: Any) -> None:
        load(ours(path))  # type: ignore[no-untyped-call]  # functools.wraps loses it

    @functools.wraps(create)
    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        spec.origin = ours(spec.origin)
        return create(self, spec)

    vars(load_library)["cores"] = cores
    torch.ops.load_library = load_library  # type: ignore[method-assign]
    ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign]
