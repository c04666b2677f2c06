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

    ``found``, ``needed`` and ``fix`` are attributes too, and ``what`` is the first line of the text. ``about`` is the
    name that the text begins with, of an error about one op or family.
    """

    def __init__(
        self,
        what: str = "",
        *,
        found: _Lines = "",
        needed: _Lines = "",
        env: str = "",
        fix: _Lines = "",
        more: str = "",
        about: str = "",
    ) -> None:
        self.about, self._said = about, what
        super().__init__(block(self._begun, found=found, needed=needed, env=env, fix=fix, more=more))
        self.found, self.needed, self.fix = found, needed, fix

    @property
    def _begun(self) -> str:
        return f"{self.about} {self._said}" if self.about else self._said

    @property
    def what(self) -> str:
        """What failed, in one line."""
        return str(self).partition("\n")[0]

    def brief(self, known: str) -> str:
        """The text for a place that shows the environment itself, without the command ``known``, which led there."""
        fix = [command for command in _listed(self.fix) if command != known]
        return block(self._begun, found=self.found, needed=self.needed, fix=fix)

    def renamed(self, name: str) -> KernelError:
        """The same error, which begins with another name for what it is about."""
        if self.about:
            self.args = (f"{name}{str(self).removeprefix(self.about)}",)
            self.about = name
        return self


class KernelIncompatible(KernelError):
    """A file or a library does not fit, or is corrupted; none of its code was executed."""


class PrebuiltRefused(KernelIncompatible, ImportError):
    """A compiled module of an extension package does not fit this process; importing it raises this ImportError."""
