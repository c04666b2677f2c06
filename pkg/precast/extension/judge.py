"""Judges one candidate of a loader: its origin, whether it can be loaded here, and why not."""

from __future__ import annotations

from typing import Literal

from precast._abi.settings import JitMode
from precast.core.value import value
from precast.errors import KernelError
from precast.extension.base import Extension

State = Literal["ready", "absent", "held back", "refused", "broken"]

# Exceptions with which a class may refuse; older classes have no common base class of errors.
REFUSALS = (KernelError, AssertionError, RuntimeError, ValueError, ImportError, OSError)


@value(frozen=True)
class Candidate:
    """One extension of a loader. ``reason`` is empty if it can be loaded."""

    name: str
    backend: str
    priority: int
    origin: str
    state: State
    reason: str

    @property
    def first_line(self) -> str:
        """The reason in one line."""
        return ": ".join(line.strip() for line in self.reason.splitlines()[:2])


def judge(extension: Extension, origin: str, mode: JitMode) -> tuple[Candidate, Exception | None]:
    """The verdict on an extension, and the exception with which it refused."""
    state: State = "ready"
    reason, cause = "", None
    if getattr(extension, "reference", False) and mode in (JitMode.AOT, JitMode.JIT):
        state, reason = "held back", f"it is not a kernel, and PRECAST_JIT={mode.value} asks for one"
    elif not extension.is_available():
        state, reason = "absent", getattr(extension, "absent", Extension.absent)
    else:
        try:
            extension.assert_compatible()
        except REFUSALS as error:
            state, reason, cause = "refused", str(error) or type(error).__name__, error
    backend = getattr(extension, "backend", "python")
    return Candidate(extension.name, backend, extension.priority, origin, state, reason), cause
