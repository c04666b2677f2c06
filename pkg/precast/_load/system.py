"""Supported systems, and guards for features that other systems lack."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from precast.errors import KernelUnavailable, block

_NO_SUBINTERPRETER = block(
    "precast works in the main interpreter only",
    found="a subinterpreter",
    needed="the main interpreter, as torch has one dispatcher for the whole process; nothing was loaded",
    fix="use threads or processes (multiprocessing) instead of subinterpreters",
)


def only_linux(platform: str) -> str:
    """The error text for every other system: it has no prebuilt files, and none can be built there."""
    return f"precast has kernels for Linux only, and this is {platform!r}; nothing was loaded"


def require_linux(platform: str = sys.platform) -> None:
    """Raise KernelUnavailable on anything but Linux."""
    if platform != "linux":
        raise KernelUnavailable(
            only_linux(platform),
            found=platform,
            needed="Linux",
            fix="none on this system: run the program on Linux",
        )


def after_fork_in_child(renew: Callable[[], None]) -> None:
    """Call ``renew`` in every forked child. Systems without fork do not need this, and can still run the doctor."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)


def require_main_interpreter() -> None:
    """Raise in a subinterpreter: torch exists once per process, and importing it in a second one hangs or crashes."""
    if sys.platform != "linux":
        return
    try:
        import ctypes
    except ImportError as error:  # a subinterpreter with its own GIL (PEP 684) cannot import ctypes
        raise KernelUnavailable(_NO_SUBINTERPRETER) from error
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    api.PyInterpreterState_GetID.argtypes = [ctypes.c_void_p]
    api.PyInterpreterState_GetID.restype = ctypes.c_int64
    if api.PyInterpreterState_GetID(api.PyInterpreterState_Get()) != 0:
        raise KernelUnavailable(_NO_SUBINTERPRETER)
