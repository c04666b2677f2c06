"""An instance with a replaced method: how it is told apart, copied and put back, and which calls a kernel serves.

What replaces a method is a ``functools.partial`` of a function of :mod:`precast._adopt.forwards`, with the instance as
its first argument. It is pickled and copied with its module. Python looks such a method up without saying for which
instance, so a shallow copy would call it for the original: :func:`put` also makes each copy bind its own. A
``__dict__`` that was copied by hand still calls the original.

Subclasses would cover every copy, but torch's quantization, FLOP counters and DeepSpeed choose by ``type(module)``.
Each call checks class, attributes and entries: 4.2 us for ``LayerNorm(64)``, 3.9 without the checks, torch's own 5.6.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from precast.errors import KernelError
from precast.ops._checks import FLOAT_TYPES

# A partial cannot be told apart from those of others, except by its function.
_OURS: list[Callable[..., Any]] = []
ROTATE = "apply_rotary_pos_emb"  # the function of a module of transformers that its attention calls
LOSS = "_loss_function"  # what the setter of transformers' ``loss_function`` writes
GATE = "_apply_gate"  # what transformers calls between the projections of experts
_METHODS = ("forward", GATE, LOSS)
# What Python and torch call to copy a module or to compile its source; an instance has them while it is adopted.
_HELPERS = ("__reduce_ex__", "_replicate_for_data_parallel", "__prepare_scriptable__")


def is_ours(forward: object) -> bool:
    """Whether an instance's ``forward`` is one of this file."""
    return isinstance(forward, functools.partial) and forward.func in _OURS


def patched(model: Module) -> list[tuple[Module, str, Callable[..., Any]]]:
    """Each attribute of an instance that is one of this file, with its value."""
    found = [(module, name, module.__dict__.get(name)) for module in model.modules() for name in _METHODS]
    return [(module, name, value) for module, name, value in found if value is not None and is_ours(value)]


def ours(function: Callable[..., Any]) -> Callable[..., Any]:
    _OURS.append(function)
    return function


def put(module: Module, attribute: str, function: Callable[..., Any]) -> None:
    """Replace a method of an instance, so that each copy of the instance calls it for itself."""
    module.__dict__[attribute] = function
    if is_bound(function):
        for name, helper in zip(_HELPERS, (_reduced, _replicated, _not_scripted), strict=True):
            module.__dict__.setdefault(name, functools.partial(helper, module))


def take(module: Module, attribute: str) -> None:
    """Give an instance its own method again."""
    module.__dict__.pop(attribute, None)
    if not any(is_bound(module.__dict__.get(name)) for name in _METHODS):
        _take_helpers(module)


def restore(module: Module) -> int:
    """Give an instance all its methods again; how many were replaced.

    Where another tool has kept ours as an attribute, to call it, that is the own forward from now on. Where it keeps it
    elsewhere, ours calls the own forward: see :func:`is_adopted`.
    """
    mine = [name for name, value in module.__dict__.items() if is_ours(value) and name not in _HELPERS]
    kept_elsewhere = not mine and is_adopted(module)
    for name in mine:
        if name in _METHODS:
            del module.__dict__[name]
        else:
            module.__dict__[name] = types.MethodType(type(module).forward, module)
    _take_helpers(module)
    return len(mine) + kept_elsewhere


def is_adopted(module: Module) -> bool:
    """Whether replacements of this instance may run. It is asked in each call."""
    return _HELPERS[0] in module.__dict__


def _take_helpers(module: Module) -> None:
    for name in _HELPERS:
        if is_bound(module.__dict__.get(name)):
            del module.__dict__[name]


def is_bound(function: Any) -> bool:
    """Whether a replacement is for one module; that of a loss is not."""
    return is_ours(function) and isinstance(function.args[0], Module)


def _rebound(copied: Module) -> Module:
    """A shallow copy, with its own replacements in place of those of the original."""
    for name, value in copied.__dict__.items():
        if is_bound(value):
            mine = functools.partial(value.func, copied, *value.args[1:], **value.keywords)
            mine.__dict__.update(value.__dict__)
            copied.__dict__[name] = mine
    return copied


@ours
def _replicated(module: Any, /) -> Module:
    """For ``torch.nn.DataParallel``."""
    return _rebound(type(module)._replicate_for_data_parallel(module))


@ours
def _reduced(module: Module, /, protocol: Any) -> Any:
    """For ``copy`` and ``pickle``: how to make a copy. Its state is what the own method gives."""
    reduced: Any = type(module).__reduce_ex__(module, protocol)
    make, given, *state = reduced
    return _made, (make, given), *state


def _made(make: Callable[..., Any], given: tuple[Any, ...]) -> Module:
    """An empty copy of a module, which binds its replacements when it gets its state."""
    made: Module = make(*given)
    made.__dict__["__setstate__"] = functools.partial(_filled, made)
    return made


def _filled(made: Any, state: Any) -> None:
    del made.__dict__["__setstate__"]
    type(made).__setstate__(made, state)
    _rebound(made)


@ours
def _not_scripted(module: Module, /) -> None:
    """For ``torch.jit.script``, which compiles the source of a forward."""
    raise KernelError(
        f"torch.jit.script cannot compile a {type(module).__name__} that precast.adopt has changed",
        found="a forward that is bound to the instance",
        needed="the module's own forward; torch.jit.trace and torch.export take it from an adopted model too",
        fix="precast.undo_adopt(model)",
    )


def own(module: Module, *given: Any, **named: Any) -> Any:
    """The module's own forward."""
    return type(module).forward(module, *given, **named)


def served(x: Any, like: Tensor | None, device: str) -> bool:
    """Whether the kernel does with ``x`` what the own forward does. Autocast casts 16-bit inputs of some functions."""
    return (
        type(x) is Tensor
        and x.device.type == device
        and x.dtype in FLOAT_TYPES
        and (like is None or like.dtype == x.dtype)
        and not x.is_nested
        and (x.dtype == torch.float32 or not torch.is_autocast_enabled(device))
    )


def eps_of(module: Module, name: str) -> float:
    """The number in an attribute; None is what it means in ``torch.nn.RMSNorm``."""
    value = getattr(module, name)
    return torch.finfo(torch.float32).eps if value is None else value


def run_as(changed: type[Any], module: Module, *given: Any, **named: Any) -> Any:
    """The forward of another class for a module, which keeps its own class and shares its state."""
    twin = object.__new__(changed)
    twin.__dict__ = module.__dict__
    return changed.forward(twin, *given, **named)


def in_rows(x: Any, device: str) -> bool:
    """Whether a kernel reads it where it lies: contiguous, or some columns of what is."""
    if type(x) is not Tensor or x.device.type != device or x.dtype not in FLOAT_TYPES or not x.dim():
        return False
    outer = zip(x.shape[1:-1], x.stride()[:-2], x.stride()[1:-1], strict=True)
    return x.is_contiguous() or (x.stride(-1) == 1 and all(step == size * inner for size, step, inner in outer))


def plain(x: Any, device: str) -> bool:
    return type(x) is Tensor and x.device.type == device and x.dtype in FLOAT_TYPES and x.is_contiguous()


def has_hooks(module: Module | None) -> bool:
    """Whether a call of the module calls hooks, too; a kernel that stands for it would not."""
    return module is not None and bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
    )


def computes_weights(module: Module) -> bool:
    """Whether its weight or bias is no parameter, but made of some for each call: a parametrization, pruning."""
    return is_parametrized(module) or any(module.__dict__.get(name) is not None for name in ("weight", "bias"))
