"""What torch's own ops in place do, for ours: refuse what must not be written, and count changes once they are made.

An op that writes its arguments gets two more kernels. ``ADInplaceOrView`` raises the version counters after the call,
so that a refused call does not break an earlier graph and a dispatch mode sees the counters of before. ``Negative``
replaces a fallback of torch that writes first and then fails, because our ops in place return nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_IN_PLACE = torch._C.DispatchKey.ADInplaceOrView
_NEGATIVE = torch._C.DispatchKey.Negative
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_is_inference = torch._C.TensorBase.is_inference
_in_inference_mode = torch.is_inference_mode_enabled

Kernel: TypeAlias = Callable[..., Any]  # of the keyset and the arguments


def register(library: Any, op: torch._ops.OpOverload) -> Kernel | None:
    """Register both kernels if the op writes in place; return the first one, for callers above it."""
    written = written_arguments(op)
    if not written:
        return None
    name = op._opname
    lists = [i for i in written if str(op._schema.arguments[i].type) == "List[Tensor]"]
    ones = [i for i in written if i not in lists]

    def in_place(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        targets = [args[i] for i in ones if args[i] is not None]
        for i in lists:
            targets += args[i]
        refuse_inference(name, targets)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            done = op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args)
        mark_written(targets)
        return done

    def negative(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        for i in written:
            refuse_negative(name, op._schema.arguments[i].name, args[i])
        return op.redispatch(keyset.remove(_NEGATIVE), *map(_resolved, args))

    library.impl(name, in_place, "ADInplaceOrView", with_keyset=True)
    library.impl(name, negative, "Negative", with_keyset=True)
    return in_place


def written_arguments(op: torch._ops.OpOverload) -> tuple[int, ...]:
    """The positions of the arguments that an op writes."""
    if not op._schema.is_mutable:
        return ()
    infos = [argument.alias_info for argument in op._schema.arguments]
    return tuple(i for i, info in enumerate(infos) if info is not None and info.is_write)


def below(entry: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls an op below autograd and the kernel above, whose work is left to the caller."""

    def call(*args: Any) -> Any:
        _exclude(_AUTOGRAD, True)
        _exclude(_IN_PLACE, True)
        try:
            return entry(*args)
        finally:
            _exclude(_IN_PLACE, False)
            _exclude(_AUTOGRAD, False)

    return call


def refuse_inference(op: str, targets: Iterable[Tensor]) -> None:
    """Raise if an inference tensor would be written outside inference mode; torch does, but after it has written."""
    if any(map(_is_inference, targets)) and not _in_inference_mode():
        raise RuntimeError(
            f"{op}: an inference tensor would be written in place outside inference mode; needed tensor.clone(), or "
            "torch.inference_mode() around the call; nothing was written"
        )


def refuse_negative(op: str, name: str, target: Any) -> None:
    """Raise if a tensor, or one of a list, has the negative bit."""
    for tensor in target if isinstance(target, (list, tuple)) else (target,):
        if isinstance(tensor, Tensor) and tensor.is_neg():
            raise RuntimeError(
                f"{op}: {name} has the negative bit (a lazy negation, as in the imaginary part of a conjugate) and "
                "would be written in place; needed tensor.resolve_neg(); nothing was written"
            )


def show_written(tensors: Iterable[Tensor]) -> None:
    """Let a dispatch mode see that tensors will be written, for an op that does not name them in its arguments.

    ``allow_mutation_on_saved_tensors`` is such a mode. A copy onto itself does nothing else.
    """
    if torch._C._len_torch_dispatch_stack() == 0:
        return
    with torch._C._AutoDispatchBelowADInplaceOrView():
        for tensor in tensors:
            tensor.copy_(tensor)


def _bumps_many() -> bool:
    """Whether ``increment_version`` takes several tensors at once; one by one they cost 0.1 us more each."""
    try:
        torch.autograd.graph.increment_version(())
    except (RuntimeError, TypeError):  # "increment_version expect a Tensor as input"
        return False
    return True


_BUMPS_MANY = _bumps_many()  # torch 2.4 does not
# Without the Python frame of increment_version, where torch has it.
_increment = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Increment version counters, so that a later backward through a tensor that we overwrote raises an error."""
    if _BUMPS_MANY:
        _increment(tensors)
        return
    for tensor in tensors:
        if not tensor.is_inference():  # such a tensor has no counter, and an old torch raises
            torch.autograd.graph.increment_version(tensor)


def _resolved(value: Any) -> Any:
    """An argument without negative bits."""
    if isinstance(value, (list, tuple)):
        return [_resolved(item) for item in value]
    return value.resolve_neg() if isinstance(value, Tensor) else value
