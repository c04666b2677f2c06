"""PyTorch kernels that can be installed without a build.

Importing this package imports neither torch nor any compiled file; functions and kernels are loaded at their first
use::

    import precast
    y = precast.ops.rms_norm(x, weight)      # loads the kernels that it needs, or builds them
    precast.load("rms_norm", "cuda:0")       # loads them earlier, for example before a CUDA graph is captured
"""

from precast import core as _core  # noqa: F401  # refuses to be used from a zip
from precast._version import __version__

TYPE_CHECKING = False  # type checkers know the name; ``typing`` would take longer to import than everything here
if TYPE_CHECKING:
    from typing import Any

    from precast import base_extension, errors, extension, jit, kernel_loader, nn, ops, optim
    from precast._adopt.hub import kernel_mapping
    from precast._adopt.run import adopt, undo_adopt
    from precast._builder.xray_report import xray
    from precast._load.source import Loaded
    from precast._loading import load, prebuild

if any("\udc80" <= letter <= "\udcff" for letter in __file__):  # bytes that Python could not decode (PEP 383)
    raise ImportError(
        f"precast cannot be used from {__file__!a}: the path is not UTF-8, and torch refuses such names. "
        "Install it in a folder with another name, or set LC_ALL=C.UTF-8 if the name is UTF-8"
    )

# What each lazy attribute is: a submodule, or a name inside one (PEP 562).
_SUBMODULES = ("base_extension", "errors", "extension", "jit", "kernel_loader", "nn", "ops", "optim")
_MEMBERS = {
    **dict.fromkeys(("adopt", "undo_adopt"), "precast._adopt.run"),
    **dict.fromkeys(("load", "prebuild"), "precast._loading"),
    "Loaded": "precast._load.source",
    "kernel_mapping": "precast._adopt.hub",
    "xray": "precast._builder.xray_report",
}

__all__ = [
    "Loaded",
    "__version__",
    "adopt",
    "base_extension",
    "errors",
    "extension",
    "jit",
    "kernel_loader",
    "kernel_mapping",
    "load",
    "nn",
    "ops",
    "optim",
    "prebuild",
    "undo_adopt",
    "xray",
]


def __getattr__(name: str) -> "Any":
    import importlib

    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MEMBERS:
        value = getattr(importlib.import_module(_MEMBERS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
