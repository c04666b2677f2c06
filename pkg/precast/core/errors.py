"""The errors: what failed, what was found, what was needed, and a command that fixes it."""

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
    """Base of every error here, so that one ``except`` clause catches them all.

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


class KernelIncompatible(KernelError):
    """A file or a library does not fit, or is corrupted; none of its code was executed."""


class PrebuiltRefused(KernelIncompatible, ImportError):
    """A compiled module of an extension package does not fit this process; importing it raises this ImportError."""
