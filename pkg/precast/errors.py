"""Every exception that precast raises on purpose.

The contract: the first line of a :class:`KernelError` says what failed. Then it says what was found, what was needed,
and the command that fixes it. Nothing exits the process, and an underlying exception is chained as ``__cause__``.
"""

from __future__ import annotations

import collections.abc

_Lines = str | collections.abc.Sequence[str]


def block(
    what: str, *, found: _Lines = "", needed: _Lines = "", env: str = "", fix: _Lines = "", more: str = ""
) -> str:
    """The text of an error, without the parts that are empty; ``fix`` is a command, or several to choose from."""
    lines = [what]
    commands = [f"{number}) {command}" for number, command in enumerate(_listed(fix), start=1)]
    for name, part in (("found", found), ("needed", needed), ("env", env), ("fix", commands), ("more", more)):
        lines += [f"  {'' if index else name:8}{line}" for index, line in enumerate(_listed(part))]
    return "\n".join(lines)


def _listed(part: _Lines) -> collections.abc.Sequence[str]:
    return [part] if part and isinstance(part, str) else part


class KernelError(RuntimeError):
    """Base of every precast error, so that one ``except`` clause catches them all.

    ``found``, ``needed`` and ``fix`` are attributes too, and ``what`` is the first line of the text.
    """

    def __init__(
        self, what: str = "", *, found: _Lines = "", needed: _Lines = "", env: str = "", fix: _Lines = ""
    ) -> None:
        super().__init__(block(what, found=found, needed=needed, env=env, fix=fix))
        self.found, self.needed, self.fix = found, needed, fix

    @property
    def what(self) -> str:
        """What failed, in one line."""
        return str(self).partition("\n")[0]


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
