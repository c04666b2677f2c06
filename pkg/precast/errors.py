"""Every exception that precast raises on purpose.

The first line of a :class:`KernelError` says what failed. The next lines say what was found, what was needed,
and the fix. precast does not exit the process, and an underlying exception is chained as ``__cause__``.
"""

from __future__ import annotations

from precast.core.errors import KernelError, KernelIncompatible, PrebuiltRefused
from precast.core.errors import block as block  # noqa: PLC0414 - for the parts of this package alone

__all__ = [
    "BuildFailed",
    "BuildTimeout",
    "JitDisabled",
    "KernelError",
    "KernelIncompatible",
    "KernelUnavailable",
    "PrebuiltRefused",
]

# The fix of an error that no user can have caused.
REPORT = "report this, with the output of: python -m precast report"

for _one in (KernelError, KernelIncompatible, PrebuiltRefused):
    _one.__module__ = __name__  # the name by which people know them


class KernelUnavailable(KernelError):
    """No kernel can be loaded for an op on this machine; the message lists each candidate and why it was rejected."""


class BuildFailed(KernelError):
    """A compiler failed; the message holds its first error, the command and the path of the whole log."""


class JitDisabled(KernelUnavailable):
    """A build at run time is needed, and ``PRECAST_JIT`` forbids it."""


class BuildTimeout(KernelError):
    """Another process took longer to build than this one may wait."""
