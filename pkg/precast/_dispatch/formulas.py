"""How an op's formulas enter the dispatcher, above the kernels, so that no way of calling an op is silently wrong.

Three kernels per op, all registered right after the schema and before any call (a call in between leaves a stale
dispatch table behind):

- ``Meta``, and the fake one: the checks and the result's metadata, for ``torch.compile`` and ``torch.export``;
- ``Autograd``: what happens when a tensor could carry a gradient or a tangent;
- ``FuncTorchDynamicLayerFrontMode``: what happens under ``torch.func``: jvp, vmap, grad.

``torch.library.register_autograd`` is not used: measured on torch 2.13, an op with such a formula returns a zero
tangent under ``torch.func.jvp``, and its gradient cannot be differentiated again, both without a word.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from precast._dispatch import namespace
from precast._load.handover import NAMESPACE

if TYPE_CHECKING:
    from precast._dispatch.sharding import Rule

# The key that stands for "autograd wants to see this call". A wrapper that knows that nothing can ask for a gradient
# excludes it for one call: that costs 0.25 us, the Python kernel registered there 3 us.
AUTOGRAD_KEY = torch._C.DispatchKey.AutogradFunctionality

# Bound once: on a small input a call is a few microseconds, and each attribute looked up is a few hundredths of one.
_is_compiling = torch.compiler.is_compiling
_transform_active = torch._C._are_functorch_transforms_active
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded


def _bumps_many() -> bool:
    """Whether ``increment_version`` takes several tensors at once; one after the other costs 0.1 us more for each."""
    try:
        torch.autograd.graph.increment_version(())
    except (RuntimeError, TypeError):  # "increment_version expect a Tensor as input"
        return False
    return True


_BUMPS_MANY = _bumps_many()  # torch 2.4 does not

RULES: dict[str, Rule] = {}  # of each op: how it is split over a device mesh


def refused(*_: Any) -> Any:
    """The sharding rule of an op that has none: an error says so."""


def on_rows(results: int, *, sums: int = 0, kept: int = 1) -> Rule:
    """The sharding rule of an op over rows; ``sharding.over_rows`` says what it means."""

    def rule(x: Any, *args: Any) -> Any:
        from precast._dispatch import sharding  # only for a DTensor

        return sharding.over_rows(x, kept, args, results, sums)

    return rule


def late(module: Callable[[], ModuleType], name: str) -> Callable[..., Any]:
    """A function of a module that is imported when the function is called: a first call needs no reference."""

    def call(*args: Any) -> Any:
        return getattr(module(), name)(*args)

    return call


def register(
    name: str,
    *,
    check: Callable[..., None],
    result: Callable[..., Any],
    reference: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    sharding: Rule | None = refused,
) -> torch._ops.OpOverload:
    """Registers the formulas of one op, each called with the arguments of its schema, and returns the op.

    ``check`` raises on inputs that no kernel takes; ``result`` makes an uninitialised result; ``reference`` computes it
    in differentiable torch ops, and answers wherever a tangent or a transform is present; ``gradient`` records reverse
    mode (it is called with what computes below autograd first), or is None when the reference does that too.
    ``sharding`` is the rule for DTensors; with None torch's own error names the op.
    """
    library: Any = namespace.library()
    op = namespace.overload(name)
    namespace.CHECKS[name] = check
    if sharding is not None:
        RULES[name] = sharding
    written = [i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]

    def fake(*args: Any) -> Any:
        if "torch.distributed.tensor" in sys.modules:  # a DTensor may be behind this call
            from precast._dispatch.sharding import register_once

            register_once(name)
        check(*args)
        return result(*args)

    def by_reference(*args: Any) -> Any:
        check(*args)
        return reference(*args)

    def autograd(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        # An open forward-mode level is asked for, not a tangent: it costs nothing, and the reference is right anyway.
        if forward_ad._current_level >= 0:
            return by_reference(*args)
        if torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(args)):
            if gradient is None:
                return by_reference(*args)
            return gradient(functools.partial(below_autograd, op, keyset), *args)
        if written:
            mark_written(_tensors(args[i] for i in written))
        return below_autograd(op, keyset, *args)

    _register_fake(library, f"{NAMESPACE}::{name}", fake)
    library.impl(name, autograd, "Autograd", with_keyset=True)
    library.impl(name, by_reference, "FuncTorchDynamicLayerFrontMode")
    return op


def _register_fake(library: Any, name: str, fake: Callable[..., Any]) -> None:
    """``torch.library.register_fake`` without its search through the modules of the process for the one that called.

    The search takes 2 ms when there is only torch, more in a larger program, and gives a line for an error we never
    raise. Where torch keeps fake kernels in another way than 2.13 does, its own function is called.
    """
    try:
        holder = torch._library.simple_registry.singleton.find(name).fake_impl
        holder.register(fake, __name__, lib=library)
    except (AttributeError, TypeError):
        torch.library.register_fake(name, fake, lib=library)


def below_autograd(op: torch._ops.OpOverload, keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
    """Hands a call that reached the ``Autograd`` key on to the kernel beneath."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def without_autograd(entry: Callable[..., Any]) -> Callable[..., Any]:
    """What calls an op's entry point under autograd, from where the ``Autograd`` key has not been passed yet."""

    def call(*args: Any) -> Any:
        torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOGRAD_KEY, True)
        try:
            return entry(*args)
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOGRAD_KEY, False)

    return call


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether nothing can ask for a tangent, a transform or a graph: then a call passes under autograd's Python kernel.

    What that would have done is done by the caller. Every other call leads through it, as does a direct call of the op.
    """
    return (
        not _is_compiling()  # first: what is asked below, torch 2.4 cannot trace
        and forward_ad._current_level < 0
        and not _transform_active()
        and not has_torch_function(tensors)
        and not _is_excluded(AUTOGRAD_KEY)
    )


def are_bare(tensors: Sequence[Tensor]) -> bool:
    """Whether the dispatcher would hand over these very tensors: a kernel may then take them from elsewhere as well."""
    return means_its_memory(*tensors) and not has_torch_function(tuple(tensors))


def means_its_memory(*tensors: Tensor) -> bool:
    """Whether the memory of each tensor is all there is to it.

    It is not if the tensor is of a subclass with ``__torch_dispatch__`` or of a transform, if it has no memory (zero
    tensor), or if its elements are not what the memory says (negative bit).
    """
    keys_of, others = torch._C._dispatch_keys, ~_plain_keys()
    return not any(keys_of(tensor).raw_repr() & others for tensor in tensors)


@functools.cache
def _plain_keys() -> int:
    backends = ("CPU", "CUDA", "XPU")
    names = ("ADInplaceOrView", *(way + name for way in ("", "Autograd", "Autocast") for name in backends))
    keys = (torch._C.DispatchKeySet(cast("Any", torch._C._parse_dispatch_key(name))) for name in names)
    return functools.reduce(int.__or__, (key.raw_repr() for key in keys))


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Bumps version counters, so that a later backward through a tensor we wrote over raises instead of being wrong.

    The dispatcher does not do it: it falls through ``ADInplaceOrView`` for ops that are not torch's own.
    """
    if _BUMPS_MANY:
        torch.autograd.graph.increment_version(tensors)
        return
    for tensor in tensors:
        if not tensor.is_inference():  # it has no counter, and an old torch raises
            torch.autograd.graph.increment_version(tensor)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
