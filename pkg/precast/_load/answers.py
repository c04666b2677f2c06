"""Let ``torch.ops.load_library`` and Python's loader of modules open what fits when they are given the path of a guard.

Packages find their libraries by path: ``find_spec(...).origin``, a file finder for extension modules, or a fixed name
beside ``__init__.py``. In a guarded wheel that path leads to a guard, a short text. The package's ``__init__.py`` calls
:func:`answer` first, so the path of a guard stands for the library behind it, chosen and verified. Other paths are left
alone.
"""

from __future__ import annotations

import functools
import re
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from precast._abi.build_info import GUARD_MARK
from precast._load import downstream, prebuilt, proved

_NOT_A_NAME = re.compile(r"\W")


def answer() -> None:
    """Wrap both for this process; a second call changes nothing."""
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


def load_library(guard: Path) -> None:
    """Open the library behind a guard as its package does."""
    import torch

    answer()
    torch.ops.load_library(str(guard))


def resolve(path: Any) -> Any:
    """The library behind a guard; any other path unchanged. PrebuiltRefused if no library fits this process."""
    try:
        place = Path(path)
        with place.open("rb") as file:
            is_guard = file.read(len(GUARD_MARK)) == GUARD_MARK.encode()
    except (OSError, TypeError):
        return path  # torch says what is wrong with it
    if not is_guard:
        return path
    name, folder = name_of(place.name), place.resolve().parent
    name = folder.name if name == "__init__" else name
    return str(downstream.library_at(manifest_of(folder, name), name))


def manifest_of(folder: Path, name: str) -> Path:
    """The folder of the manifest that lists a library: beside its guard, or of a package around that."""
    around = [place for one in (folder, *folder.parents) for place in (one / downstream.FOLDER, one)]
    there = [place for place in around if (place / prebuilt.MANIFEST).is_file()]
    for place in there:
        info = proved.manifest(place)
        if info is not None and any(name in file.families for file in info.host):
            return place
    return there[0] if there else folder


def name_of(file: str) -> str:
    """The name in a manifest of a library with that file name: its first part, with letters, digits and underscores."""
    return _NOT_A_NAME.sub("_", file.partition(".")[0])
