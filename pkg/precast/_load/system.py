"""The systems there are kernels for, judged before a module that exists on Linux only is imported."""

from __future__ import annotations

import sys

from precast.errors import KernelUnavailable


def require_linux(platform: str = sys.platform) -> None:
    """Raises one sentence on anything but Linux: there is no build for it, and none can be made there."""
    if platform != "linux":
        raise KernelUnavailable(f"precast has kernels for Linux only, and this is {platform!r}; nothing was loaded")
