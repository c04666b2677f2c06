"""The operator namespace ``precast``: each family's schemas defined once, before anything of it is loaded.

An op has a kernel from the moment its schema exists: a stub on ``CompositeExplicitAutograd``, which loads the family
for the device of the arguments and dispatches again. The dispatcher prefers the loaded kernel from then on, so the stub
runs once per family and device. ``torch.compile`` and ``torch.export`` see a plain operator all along.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import catalogue
from precast._load import handover
from precast._load.handover import NAMESPACE, op_name
from precast._load.system import require_linux
from precast.errors import KernelIncompatible, KernelUnavailable

if TYPE_CHECKING:
    from types import ModuleType

    import torch

CHECKS: dict[str, Callable[..., None]] = {}  # of each op, for kernels that have none of their own

_lock = threading.Lock()
_made: list[
    torch.library.Library
] = []  # at most one; kept for the life of the process, as its end would undefine the ops
_running = threading.local()


def library() -> torch.library.Library:
    """The library that owns the namespace; made at the first call."""
    require_linux()
    with _lock:
        if not _made:
            with _refusing_others():
                _made.append(_own())
        return _made[0]


@contextmanager
def family(name: str, twins: Callable[[], ModuleType] | None = None) -> Iterator[None]:
    """Defines the ops of a family, around the formulas that are registered for them; after it kernels may be loaded.

    Args:
        name: the family, as its description says it.
        twins: imports the module of its Triton kernels, which have the ops' names; None where there are none.
    """
    known = catalogue.get(name)
    owner = library()
    with _refusing_others():
        _define(owner, known)
    yield
    handover.give(name, handover.Formulas(owner, None if twins is None else lambda: _twins(twins())))


def overload(name: str) -> torch._ops.OpOverload:
    """The default overload of one op, for example ``overload("rms_norm")``; its family has been defined."""
    import torch

    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    result: torch._ops.OpOverload = packet.default
    return result


def twin(op: str) -> Callable[..., Any]:
    """The Triton kernel of one op, with the checks that the op has everywhere; imports Triton."""
    from precast._load import loader

    family = loader.family_of(op)
    twins = handover.formulas_of(family).twins
    if twins is None:
        raise KeyError(f"{family.name} has no Triton kernels")
    return twins().kernel(op)


def _twins(module: ModuleType) -> handover.Twins:
    return handover.Twins(Path(str(module.__file__)), lambda op: _checked(op, getattr(module, op)))


def _checked(op: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A Triton kernel with the checks that its op has everywhere; a plan has none, it checks what it is made of."""
    check = CHECKS.get(op)
    if check is None:
        return kernel

    def checked(*args: Any) -> Any:
        check(*args)
        return kernel(*args)

    return checked


def _own() -> torch.library.Library:
    import torch

    made: torch.library.Library = torch.library.Library(NAMESPACE, "DEF")
    return made


@contextmanager
def _refusing_others() -> Iterator[None]:
    """Names the one owner of a namespace that is there already, or somebody's fragment of it that has an op of ours."""
    try:
        yield
    except RuntimeError as error:
        if "Only a single TORCH_LIBRARY" not in str(error) and "multiple times" not in str(error):
            raise
        raise _occupied(str(error).splitlines()[0]) from error


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

        # The import of the ops does not wait for the loader, which takes as long.
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
