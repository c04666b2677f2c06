"""The operator namespace ``precast``: every schema defined once, from the catalogue, before anything is loaded.

An op has a kernel from the moment its schema exists: a stub on ``CompositeExplicitAutograd``, which loads the family
for the device of the arguments and dispatches again. The dispatcher prefers the loaded kernel from then on, so the stub
runs once per family and device. ``torch.compile`` and ``torch.export`` see a plain operator all along.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from precast._builder import catalogue
from precast._load.system import require_linux
from precast.errors import KernelIncompatible, KernelUnavailable

if TYPE_CHECKING:
    import torch

NAMESPACE = "precast"

_lock = threading.Lock()
_made: list[
    torch.library.Library
] = []  # at most one; kept for the life of the process, as its end would undefine the ops
_late: set[str] = set()  # the families of those that are defined later that are defined by now
_running = threading.local()


def library() -> torch.library.Library:
    """The library that owns the namespace, with every schema of the catalogue defined in it; made at the first call."""
    require_linux()
    with _lock:
        if not _made:
            _made.append(_define_catalogue())
        return _made[0]


def op_name(schema: str) -> str:
    """``"rms_norm(Tensor x, ...) -> Tensor"`` -> ``"rms_norm"``."""
    return schema.partition("(")[0].strip()


def overload(name: str) -> torch._ops.OpOverload:
    """The default overload of one op, for example ``overload("rms_norm")``."""
    import torch

    define_late(name)
    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    result: torch._ops.OpOverload = packet.default
    return result


def define_late(name: str) -> None:
    """Defines the ops of the family of this op, if they wait for their module to be imported."""
    made = library()
    for family in catalogue.FAMILIES:
        if family.late and any(op_name(schema) == name for schema in family.ops):
            with _lock:
                if family.name not in _late:
                    _define(made, family)
                    _late.add(family.name)


def import_formulas(family: catalogue.Family) -> None:
    """The one import against the arrows, by name: no kernel may be there without the ops' formulas.

    Gradients would be silently missing, and formulas that come after a first call are not seen by the dispatcher.
    """
    importlib.import_module("precast.ops")
    if family.late:
        importlib.import_module(f"precast.ops.{family.name}")


def refuse_foreign_kernels(family: catalogue.Family, key: str) -> None:
    """Raises if something else has already registered kernels for this family: the last of two would silently win."""
    import torch

    for schema in family.ops:
        name = f"{NAMESPACE}::{op_name(schema)}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            raise KernelIncompatible(
                f"{name} already has a {key} kernel that this copy of precast did not register\n"
                f"  found   a kernel from another library or another copy of precast\n"
                f"  needed  the namespace {NAMESPACE!r} for this copy alone ({__file__})\n"
                f"  fix     1) keep one copy: python -m pip list | grep -i {NAMESPACE}"
            )


def _define_catalogue() -> torch.library.Library:
    import torch

    try:
        made: Any = torch.library.Library(NAMESPACE, "DEF")
        for family in catalogue.FAMILIES:
            if not family.late:
                _define(made, family)
    except RuntimeError as error:
        # The one owner of a namespace is there already, or somebody's fragment of it has an op of ours.
        if "Only a single TORCH_LIBRARY" not in str(error) and "multiple times" not in str(error):
            raise
        raise _occupied(str(error).splitlines()[0]) from error
    defined: torch.library.Library = made
    return defined


def _define(made: Any, family: catalogue.Family) -> None:
    import torch

    for schema in family.ops:
        name = op_name(schema)
        made.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        op: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
        made.impl(name, _stub(op, family), "CompositeExplicitAutograd", with_keyset=True)


def _occupied(what: str) -> KernelIncompatible:
    return KernelIncompatible(
        f"the operator namespace {NAMESPACE!r} is taken in this process\n"
        f"  found   another library, or another copy of precast: {what}\n"
        f"  needed  the namespace for this copy alone ({__file__})\n"
        f"  fix     1) keep one copy: python -m pip list | grep -i {NAMESPACE}"
    )


def _stub(op: torch._ops.OpOverload, family: catalogue.Family) -> Callable[..., Any]:
    """The kernel of last resort of one op: loads, then hands the very same call back to the dispatcher."""

    def load_and_redispatch(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        import torch

        # In this room already, but it imports this module: the loader needs the schemas before it registers kernels.
        from precast._load import loader

        device = _first_device((*args, *kwargs.values()))
        if device is None:  # empty tensor lists only: there is nothing to compute, and the CPU kernel says so
            device, keyset = "cpu", torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        if getattr(_running, "op", None) is op:
            raise KernelUnavailable(
                f"{op}: the {device} kernels of {family.name} were loaded, and none of them serves this call\n"
                f"  found   dispatch keys {keyset}\n"
                f"  needed  a device of {', '.join(family.devices)}, and plain tensors\n"
                f"  fix     1) python -m precast doctor"
            )
        loader.ensure(family.name, device)
        outer, _running.op = getattr(_running, "op", None), op
        try:
            return op.redispatch(keyset, *args, **kwargs)
        finally:
            _running.op = outer

    return load_and_redispatch


def _first_device(values: Iterable[Any]) -> str | None:
    """The device type of the first tensor among the arguments, looking into lists."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device.type
        if isinstance(value, (list, tuple)):
            found = _first_device(value)
            if found is not None:
                return found
    return None
