"""Every exception that precast raises on purpose.

The contract: a :class:`KernelError` names what was asked for, what was found, what was needed, and the command that
mends it. Nothing here exits the process, and nothing is swallowed: an underlying exception is chained as ``__cause__``.
"""

from __future__ import annotations


class KernelError(RuntimeError):
    """Base of every precast error, so that one ``except`` clause catches them all."""


class KernelUnavailable(KernelError):
    """No candidate can serve this op on this host; the message lists each candidate and why it was rejected."""


class KernelIncompatible(KernelError):
    """A file or a library is there but does not fit, or is damaged; nothing of it was executed."""


class BuildFailed(KernelError):
    """A compiler ran and failed; the message holds its first error, its options and where the whole log lies."""


class JitDisabled(KernelUnavailable):
    """A build at run time would have been needed, and ``PRECAST_JIT`` forbids it."""


class BuildTimeout(KernelError):
    """Waiting for another process' build took longer than allowed."""


class PrebuiltRefused(KernelIncompatible, ImportError):
    """A compiled module of somebody's wheel does not fit this process; its import raises it, as an ImportError."""
