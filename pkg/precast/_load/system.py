"""The systems there are kernels for, and what must not be taken for granted on the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from precast.errors import KernelUnavailable


def require_linux(platform: str = sys.platform) -> None:
    """Raises one sentence on anything but Linux: there is no build for it, and none can be made there."""
    if platform != "linux":
        raise KernelUnavailable(f"precast has kernels for Linux only, and this is {platform!r}; nothing was loaded")


def after_fork_in_child(renew: Callable[[], None]) -> None:
    """Calls ``renew`` in every forked child. Systems without fork need none of it, and can still run the doctor."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
