"""Register an op's formulas with the dispatcher, above the kernels, so that no way of calling it is silently wrong.

Each op gets these kernels, all registered right after the schema and before any call, because a call in between leaves
a stale dispatch table behind:

- ``Meta`` and the fake kernel: the checks and the result's metadata, for ``torch.compile`` and ``torch.export``;
- ``Autograd``: calls with a tensor that could carry a gradient or a tangent;
- ``FuncTorchDynamicLayerFrontMode``: calls under ``torch.func``: jvp, vmap, grad;
- if the op writes in place, ``ADInplaceOrView`` and ``Negative``: what torch's own ops in place do there.

``torch.library.register_autograd`` is not used. In torch 2.13, an op with such a formula silently returns a zero
tangent under ``torch.func.jvp``, its gradient silently cannot be differentiated again, and ``torch.func.grad`` raises
an unrelated error. A kernel on ``Meta`` alone does not see a traced tensor's device, so it could not refuse tensors on
two devices.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from precast._dispatch import in_place, namespace
from precast._dispatch.namespace import Rule, refused
from precast._load.handover import NAMESPACE

# The key for "autograd handles this call". A wrapper that knows that no gradient can be needed excludes the key for one
# call: that costs 0.25 us; the Python kernel registered there costs 3 us.
AUTOGRAD_KEY = torch._C.DispatchKey.AutogradFunctionality
_requires_grad = operator.attrgetter("requires_grad")


def on_rows(results: int, *, sums: int = 0, kept: int = 1) -> Rule:
    """The sharding rule of an op over rows; see ``sharding.over_rows``."""

    def rule(x: Any, *args: Any) -> Any:
        from precast._dispatch import sharding  # needed only for a DTensor

        return sharding.over_rows(x, kept, args, results, sums)

    return rule


def register(
    name: str,
    *,
    check: Callable[..., None] | Sequence[Callable[..., None]],
    result: Callable[..., Any] | str | None,
    reference: Callable[..., Any] | None = None,
    gradient: Callable[..., Any] | None = None,
    sharding: Rule | None = refused,
) -> torch._ops.OpOverload:
    """Register the formulas of one op and return the op.

    ``check`` raises on inputs that no kernel accepts; it may be several. ``result`` makes an uninitialised result, or
    is the name of an argument that it is like, or None for an op that only writes. Both name the arguments they need,
    as the schema has them, and ``op`` for the op's name. What follows gets all arguments. ``reference`` computes the
    result in differentiable torch ops, and is used if there is a tangent or a transform; by default it is the function
    of this name in the folder's ``reference``. ``gradient`` records reverse mode; its first argument computes the op
    below autograd. It is None if the reference does that too. ``sharding`` is the rule for DTensors; if it is None,
    torch's own error names the op.
    """
    library: Any = namespace.library()
    op = namespace.overload(name)
    checks = [by_name(op, one) for one in ((check,) if callable(check) else check)]
    made = _maker(op, result)

    def check_all(*args: Any) -> None:
        for one in checks:
            one(*args)

    namespace.CHECKS[name], namespace.RESULTS[name] = check_all, made
    if sharding is not None:
        namespace.RULES[name] = sharding
    plain = namespace.reference(name) if reference is None else reference
    written_over = in_place.register(library, op)

    def fake(*args: Any) -> Any:
        if "torch.distributed.tensor" in sys.modules:  # this call may come from a DTensor
            from precast._dispatch.sharding import register_once

            register_once(name)
        check_all(*args)
        return made(*args)

    def by_reference(*args: Any) -> Any:
        check_all(*args)
        return plain(*args)

    def autograd(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        # Checks for an open forward-mode level instead of a tangent: this is free, and the reference is always right.
        if forward_ad._current_level >= 0:
            return by_reference(*args)
        if torch.is_grad_enabled() and _wants_gradient(args):
            if gradient is None:
                return by_reference(*args)
            return gradient(functools.partial(below_autograd, op, keyset), *args)
        return below_autograd(op, keyset, *args) if written_over is None else written_over(keyset, *args)

    _register_fake(library, f"{NAMESPACE}::{name}", fake)
    library.impl(name, autograd, "Autograd", with_keyset=True)
    library.impl(name, by_reference, "FuncTorchDynamicLayerFrontMode")
    return op


def _maker(op: torch._ops.OpOverload, result: Callable[..., Any] | str | None) -> Callable[..., Any]:
    """What makes the result of an op, from all its arguments."""
    if result is None:
        return lambda *_: None
    if callable(result):
        return by_name(op, result)
    place = [one.name for one in op._schema.arguments].index(result)
    return lambda *args: torch.empty_like(args[place], memory_format=torch.contiguous_format)


def by_name(op: torch._ops.OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of all arguments of an op, from one that names those that it needs, or ``op`` for the op's name."""

    @functools.cache
    def wanted() -> tuple[tuple[str, int, Any], ...] | None:
        """Name, place and default of each argument that it needs; None for a function of ``*args``, which takes all."""
        import inspect  # the first call asks

        parameters = inspect.signature(function).parameters
        kinds = {one.kind for one in parameters.values()}
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return None
        of_schema = ((one.name, i, one.default_value) for i, one in enumerate(op._schema.arguments))
        every = (("op", len(op._schema.arguments), op._opname), *of_schema)
        return tuple(one for one in every if one[0] in parameters or inspect.Parameter.VAR_KEYWORD in kinds)

    def call(*args: Any) -> Any:
        needed = wanted()
        if needed is None:
            return function(*args)
        return function(**{name: args[i] if i < len(args) else default for name, i, default in needed})

    return call


def _register_fake(library: Any, name: str, fake: Callable[..., Any]) -> None:
    """``torch.library.register_fake`` without its search for the calling module.

    The search through all modules of the process takes 2 ms with only torch, more in a larger program, and only
    serves an error that we never raise. If torch keeps fake kernels differently from 2.13, its own function is called.
    """
    try:
        holder = torch._library.simple_registry.singleton.find(name).fake_impl
        holder.register(fake, __name__, lib=library)
    except (AttributeError, TypeError):
        torch.library.register_fake(name, fake, lib=library)


def below_autograd(op: torch._ops.OpOverload, keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
    """Pass a call that reached the ``Autograd`` key on to the kernel below it."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def without_autograd(entry: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls an op's entry point below autograd, for callers above the ``Autograd`` key."""

    def call(*args: Any) -> Any:
        torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOGRAD_KEY, True)
        try:
            return entry(*args)
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOGRAD_KEY, False)

    return call


def are_bare(tensors: Sequence[Tensor]) -> bool:
    """Whether the dispatcher would pass on exactly these tensors, so that a kernel may also get them another way."""
    return means_its_memory(*tensors) and not has_torch_function(tuple(tensors))


def means_its_memory(*tensors: Tensor) -> bool:
    """Whether each tensor is fully described by its memory.

    It is not if the tensor is of a subclass with ``__torch_dispatch__`` or of a transform, if it has no memory (zero
    tensor), or if its elements differ from its memory (negative bit).
    """
    keys_of = torch._C._dispatch_keys
    if not HAS_KEY_BITS:
        return all(_are_plain(str(keys_of(tensor))) for tensor in tensors)
    others = ~plain_keys()
    return not any(keys_of(tensor).raw_repr() & others for tensor in tensors)


# Torch 2.4 has sets of dispatch keys without their bits.
HAS_KEY_BITS = hasattr(torch._C.DispatchKeySet, "raw_repr")
_BACKENDS = ("CPU", "CUDA", "XPU")
_PLAIN = ("ADInplaceOrView", *(way + name for way in ("", "Autograd", "Autocast") for name in _BACKENDS))


@functools.cache
def plain_keys() -> int:
    """The bits of the dispatch keys that a tensor has if its memory describes it fully."""
    return key_bits(*_PLAIN)


def key_bits(*names: str) -> int:
    """The bits of dispatch keys, in a torch that has ``HAS_KEY_BITS``."""
    keys = (torch._C.DispatchKeySet(cast("Any", torch._C._parse_dispatch_key(name))) for name in names)
    return functools.reduce(int.__or__, (key.raw_repr() for key in keys))


@functools.cache
def _are_plain(keys: str) -> bool:
    """Whether a set of keys, as torch prints it, has only those that a tensor has if its memory describes it fully."""
    return set(keys.partition("(")[2].rstrip(")").split(", ")) <= set(_PLAIN)


def _wants_gradient(args: Iterable[Any]) -> bool:
    for value in args:
        if isinstance(value, Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (list, tuple)) and any(map(_requires_grad, value)):
            return True
    return False
