"""The ops. Importing this package defines schemas and formulas; kernels are loaded at the first call on a device.

Each folder of this package corresponds to the folder of ``csrc`` with the same name. It defines the ops of that
folder's kernel families, and the public functions that the ``family.toml`` there lists. Some folders are imported on
the first use of one of their functions.

Public functions are written by hand: a wrapper would add 0.1 to 0.3 us to a call of 1.3 us.
"""

from __future__ import annotations

import importlib
from typing import Any

import precast._load  # noqa: F401  # refuses a subinterpreter, where importing torch would hang
from precast._builder import catalogue

__all__ = sorted(name for folder in catalogue.FOLDERS for name in folder.public)  # noqa: PLE0605 - from descriptions


def define(name: str) -> None:
    """Define the ops of a family, given its name, an op or a function of it; import its folder if it is late."""
    importlib.import_module(f"{__name__}.{catalogue.folder_of(name).name}")


def _give(folder: catalogue.Folder) -> None:
    """Import a folder and make its functions attributes here, even one that has the folder's name."""
    module = importlib.import_module(f"{__name__}.{folder.name}")
    globals().update({name: getattr(module, name) for name in folder.public})


def __getattr__(name: str) -> Any:
    """Import the folder of a late function."""
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
