"""The operator namespace ``precast``: defines each family's schemas once, before any kernel of it is loaded.

An op has a kernel as soon as its schema exists: a stub on ``CompositeExplicitAutograd``, which loads the family for the
device of the arguments and dispatches again. The dispatcher prefers the loaded kernel after that, so the stub runs once
per family and device. ``torch.compile`` and ``torch.export`` always see a plain operator.

The host library exports a constant table and ``precast_register``; opening it registers nothing. So namespaces are
checked before, and CUDA kernels are registered only after their device code is handed over: no launch asks Python.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import catalogue
from precast._load import handover
from precast._load.handover import NAMESPACE
from precast._load.system import require_linux
from precast.errors import KernelIncompatible, KernelUnavailable

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from precast._load.library import HostLibrary

CHECKS: dict[str, Callable[..., None]] = {}  # op name -> its checks, for kernels without checks of their own
RESULTS: dict[str, Callable[..., Any]] = {}  # op name -> makes an uninitialised result, or None for an op in place

Rule = Callable[..., Any]  # the placements over a device mesh that an op offers; see ``sharding``
RULES: dict[str, Rule] = {}  # by op name

# Op name -> functions to call with the host library that has its kernels, and the device, once they are registered.
BINDINGS: dict[str, list[Callable[[HostLibrary, str], None]]] = {}


def refused(*_: Any) -> Any:
    """The sharding rule of an op that cannot be sharded; an error says so."""


_packages: dict[str, str] = {}  # op name -> the package of its folder
_lock = threading.Lock()
_made: list[
    torch.library.Library
] = []  # at most one; kept for the life of the process, because deleting it would undefine the ops
_running = threading.local()


def library() -> torch.library.Library:
    """The library that owns the namespace; the first call makes it."""
    require_linux()
    with _lock:
        if not _made:
            with _refusing_others():
                _made.append(_own())
        return _made[0]


@contextmanager
def family(name: str, package: str = "") -> Iterator[None]:
    """Define the ops of a family; its formulas are registered inside the block, and its kernels may be loaded after it.

    Args:
        name: the family's name, as in its description.
        package: the family's folder, ``__package__`` there. Its module ``reference`` has the ops in plain torch by
            their names, and is imported when one of them is first needed.
    """
    known = catalogue.get(name)
    owner = library()
    ops = known.op_names
    _packages.update(dict.fromkeys(ops, package))
    with _refusing_others():
        _define(owner, known)
    yield
    handover.give(name, handover.Formulas(owner, _plain(known, package), _binder(ops), ops))


def reference(op: str) -> Callable[..., Any]:
    """The op in plain torch, from the module ``reference`` of its folder, which the first call imports."""

    def call(*args: Any) -> Any:
        return getattr(_module(_packages[op], "reference"), op)(*args)

    return call


def overload(name: str) -> torch._ops.OpOverload:
    """The default overload of one op, for example ``overload("rms_norm")``; its family must be defined."""
    import torch

    packet = getattr(getattr(torch.ops, NAMESPACE), name)
    result: torch._ops.OpOverload = packet.default
    return result


def plain(op: str) -> Callable[..., Any]:
    """One op in plain torch as it stands in for a kernel, with the same checks as the op."""
    from precast._load import loader

    family = loader.family_of(op)
    given = handover.formulas_of(family).plain
    if given is None:
        raise KeyError(f"plain torch does not stand in for {family.name}")
    return given().kernel(op)


def _binder(ops: Iterable[str]) -> Callable[[HostLibrary, str], None]:
    def bind(library: HostLibrary, key: str) -> None:
        for op in ops:
            for binding in BINDINGS.get(op, ()):
                binding(library, key)

    return bind


def _module(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{package}.{name}")


def _plain(family: catalogue.Family, package: str) -> Callable[[], handover.Plain] | None:
    def imported() -> handover.Plain:
        module = _module(package, "reference")
        return handover.Plain(Path(str(module.__file__)), lambda op: _as_kernel(op, getattr(module, op)))

    return imported if family.plain else None


def _require_memory(op: str, args: Iterable[Any]) -> None:
    """Refuse tensors whose storage was freed or shrunk, as every kernel of the host library does."""
    import torch

    for index, value in enumerate(args):
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        steps = zip(value.shape, value.stride(), strict=True)
        last = value.storage_offset() + sum((size - 1) * stride for size, stride in steps)
        covered, there = (last + 1) * value.element_size(), value.untyped_storage().nbytes()
        if covered > there:
            raise RuntimeError(
                f"{op}: argument {index + 1} has shape {tuple(value.shape)} and needs {covered} bytes of its storage, "
                f"which has {there}; it was freed or shrunk after the tensor was made"
            )


def _as_kernel(op: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference with the checks of its op, below autograd and version counters, which count what a kernel writes.

    Its results get the dtype and the strides that the op promises, and never share memory with an argument. A plan has
    no checks, because it checks its inputs when it is made.
    """
    import torch

    check, result = CHECKS.get(op), RESULTS.get(op)

    def computed(*args: Any) -> Any:
        if check is not None:
            check(*args)
            _require_memory(op, args)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            found = reference(*args)
            promised = None if result is None else result(*args)
            if promised is None:
                return found
            if isinstance(promised, tuple):
                return tuple(mine.copy_(theirs) for mine, theirs in zip(promised, found, strict=True))
            return promised.copy_(found)

    return computed


def _own() -> torch.library.Library:
    import torch

    made: torch.library.Library = torch.library.Library(NAMESPACE, "DEF")
    return made


@contextmanager
def _refusing_others() -> Iterator[None]:
    """Name the owner if the namespace is already taken, or if another library's fragment of it has one of our ops."""
    try:
        yield
    except RuntimeError as error:
        if "Only a single TORCH_LIBRARY" not in str(error) and "multiple times" not in str(error):
            raise
        raise _occupied(str(error).splitlines()[0]) from error


def _define(made: Any, family: catalogue.Family) -> None:
    import torch

    for schema, name in zip(family.ops, family.op_names, strict=True):
        made.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        op: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
        made.impl(name, _stub(op, family), "CompositeExplicitAutograd", with_keyset=True)


def _occupied(what: str) -> KernelIncompatible:
    return KernelIncompatible(
        f"the operator namespace {NAMESPACE!r} is taken in this process",
        found=f"another library, or another copy of precast: {what}",
        needed=f"the namespace for this copy alone ({__file__})",
        fix=f"python -m pip list | grep -i {NAMESPACE}  # uninstall all but one",
    )


def _stub(op: torch._ops.OpOverload, family: catalogue.Family) -> Callable[..., Any]:
    """The fallback kernel of one op: loads the family, then passes the same call back to the dispatcher."""

    def load_and_redispatch(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        import torch

        # Imported here because importing the loader would double the time to import the ops.
        from precast._load import loader

        device = _first_device((*args, *kwargs.values()))
        if device is None:  # only empty tensor lists: there is nothing to compute, and the CPU kernel handles that
            device, keyset = "cpu", torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        if getattr(_running, "op", None) is op:
            raise KernelUnavailable(
                f"{op}: the {device} kernels of {family.name} were loaded, and none of them serves this call",
                found=f"a tensor with {keyset}",
                needed=f"dense tensors on {' or '.join(family.devices)}",
                fix=[
                    "pass tensor.to_dense() for a sparse or MKL-DNN tensor",
                    "python -m precast doctor  # says which kernels fit this machine",
                ],
            )
        loader.ensure(family.name, device)
        outer, _running.op = getattr(_running, "op", None), op
        try:
            return op.redispatch(keyset, *args, **kwargs)
        finally:
            _running.op = outer

    return load_and_redispatch


def _first_device(values: Iterable[Any]) -> str | None:
    """The device type of the first tensor among the arguments, including tensors in lists."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device.type
        if isinstance(value, (list, tuple)):
            found = _first_device(value)
            if found is not None:
                return found
    return None
