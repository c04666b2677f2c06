"""What ``precast.ops`` gives the loader when it defines a family's ops. No kernel is registered before that.

Otherwise gradients would be silently missing: the dispatcher does not see formulas registered after a first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder.catalogue import Family
from precast.core.value import value
from precast.errors import KernelIncompatible, KernelUnavailable

if TYPE_CHECKING:
    import torch

    from precast._load.library import HostLibrary

NAMESPACE = "precast"

Define = Callable[[str], object]  # defines the ops of the named family unless they are already defined


@value(frozen=True)
class Plain:
    """The ops of a family in plain torch, and the file that contains them."""

    path: Path
    kernel: Callable[[str], Callable[..., Any]]  # returns a kernel by the name of its op


@value(frozen=True)
class Formulas:
    """The library that owns one family's ops, their names, and what imports plain torch to stand in, if it may.

    ``bind`` is called each time kernels of the family are registered, with the host library and the device.
    """

    library: torch.library.Library
    plain: Callable[[], Plain] | None
    bind: Callable[[HostLibrary, str], None]
    ops: tuple[str, ...]


_given: dict[str, Formulas] = {}


def give(family: str, formulas: Formulas) -> None:
    """Record that the family's ops are defined, with their checks and gradient formulas."""
    _given[family] = formulas


def formulas_of(family: Family) -> Formulas:
    """The formulas given for a family. Raises KernelUnavailable if its ops have not been defined."""
    if family.name not in _given:
        raise KernelUnavailable(
            f"the kernels of {family.name} cannot be registered before its ops are defined",
            found=f"a process in which the ops of {family.name} are not defined",
            needed="precast.load, which defines the ops and then registers their kernels",
            fix=f"import precast; precast.load({family.name!r})",
        )
    return _given[family.name]


def refuse_foreign_kernels(ops: Iterable[str], key: str) -> None:
    """Raise if something else has registered kernels for one of these ops: torch silently keeps the last of two."""
    import torch

    for op in ops:
        name = f"{NAMESPACE}::{op}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            raise KernelIncompatible(
                f"{name} already has a {key} kernel that this copy of precast did not register",
                found="a kernel from another library or another copy of precast",
                needed=f"the namespace {NAMESPACE!r} for this copy alone ({__file__})",
                fix=f"python -m pip list | grep -i {NAMESPACE}  # uninstall all but one",
            )
