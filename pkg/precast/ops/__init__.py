"""The ops. Importing this defines their schemas and formulas; kernels are loaded at the first call on a device.

Each folder here has the kernel families of the folder of ``csrc`` with its name, and gives the functions that the
description there lists. A late folder is imported at the first use of one of its functions.
"""

from __future__ import annotations

import importlib
from typing import Any

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast._builder import catalogue

__all__ = sorted(name for folder in catalogue.FOLDERS for name in folder.public)  # noqa: PLE0605 - from the descriptions


def define(family: str) -> None:
    """Defines the ops of a family by its name, if nobody has yet: the folder of a late one is imported."""
    importlib.import_module(f"{__name__}.{catalogue.folder_of(catalogue.get(family).name).name}")


def _give(folder: catalogue.Folder) -> None:
    """Imports a folder; its functions become attributes here, also one that has the folder's name."""
    module = importlib.import_module(f"{__name__}.{folder.name}")
    globals().update({name: getattr(module, name) for name in folder.public})


def __getattr__(name: str) -> Any:
    """Imports the folder of a late function."""
    for folder in catalogue.FOLDERS:
        if name in folder.public and folder.late:
            _give(folder)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _folder in catalogue.FOLDERS:
    if not _folder.late:
        _give(_folder)
