"""Every exception that precast raises on purpose.

The contract: the first line of a :class:`KernelError` says what failed. Then it says what was found, what was needed,
and the command that fixes it. Nothing exits the process, and an underlying exception is chained as ``__cause__``.
"""

from __future__ import annotations


class KernelError(RuntimeError):
    """Base of every precast error, so that one ``except`` clause catches them all."""


class KernelUnavailable(KernelError):
    """Nothing can serve this op on this machine; the message lists each candidate and why it was rejected."""


class KernelIncompatible(KernelError):
    """A file or a library does not fit, or is corrupted; none of its code was executed."""


class BuildFailed(KernelError):
    """A compiler failed; the message holds its first error, the command and the path of the whole log."""


class JitDisabled(KernelUnavailable):
    """A build at run time is needed, and ``PRECAST_JIT`` forbids it."""


class BuildTimeout(KernelError):
    """Another process took longer to build than this one may wait."""


class PrebuiltRefused(KernelIncompatible, ImportError):
    """A compiled module of an extension package does not fit this process; importing it raises this ImportError."""
