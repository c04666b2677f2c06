"""The errors for an intact file that this machine does not open: :mod:`precast.core.unopened` says why."""

from __future__ import annotations

from pathlib import Path

from precast.core import files, unopened
from precast.core.reasons import Rejection
from precast.errors import KernelUnavailable


def passing(path: Path, reason: Rejection) -> KernelUnavailable:
    """The error for a reason that may be gone at the next call, so that nothing else is used or built instead."""
    return KernelUnavailable(
        f"{path.name} cannot be opened now; the next call tries again",
        found=f"{path}: {reason.found}",
        needed=reason.needed,
        fix=reason.fix,
    )


def refuse_noexec(folder: Path) -> None:
    """Raise KernelUnavailable if libraries that are built into this folder could not be loaded from it."""
    if files.is_noexec(folder):
        raise of_cache(folder, unopened.noexec(folder))


def of_cache(path: Path, reason: Rejection) -> KernelUnavailable:
    """The error for a library of the build cache that this machine does not load from there."""
    from precast._builder import trust  # imported for errors alone

    return KernelUnavailable(
        "libraries in the build cache cannot be loaded here",
        found=f"{path}: {reason.found}",
        needed=f"{reason.needed} for the build cache",
        fix=trust.another(path),
    )
