"""An instance with a replaced method: how it is told apart, and whether it and a call are as the probe saw them.

What replaces a method is a ``functools.partial`` of a function of :mod:`precast._adopt.forwards`, with the instance as
its first argument. It is pickled and copied with its module.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from precast.ops._checks import FLOAT_TYPES

Child = tuple[str, type[Any]]  # the name, and the class that the probe has seen
# A partial cannot be told apart from those of others, except by its function.
_OURS: list[Callable[..., Any]] = []
ROTATE = "apply_rotary_pos_emb"  # the function of a module of transformers that its attention calls
LOSS = "_loss_function"  # what the setter of transformers' ``loss_function`` writes
GATE = "_apply_gate"  # what transformers calls between the projections of experts
is_compiling = torch.compiler.is_compiling


def is_ours(forward: object) -> bool:
    """Whether an instance's ``forward`` is one of this file."""
    return isinstance(forward, functools.partial) and forward.func in _OURS


def patched(model: Module) -> list[tuple[Module, str, Callable[..., Any]]]:
    """Each attribute of an instance that is one of this file, with its value."""
    found = [
        (module, name, module.__dict__.get(name)) for module in model.modules() for name in ("forward", GATE, LOSS)
    ]
    return [(module, name, value) for module, name, value in found if value is not None and is_ours(value)]


def ours(function: Callable[..., Any]) -> Callable[..., Any]:
    _OURS.append(function)
    return function


def own(module: Module, *given: Any, **named: Any) -> Any:
    """The module's own forward."""
    return type(module).forward(module, *given, **named)


def served(x: Any, like: Tensor | None, device: str) -> bool:
    """Whether the kernel does with ``x`` what the own forward does. Autocast casts 16-bit inputs of some functions."""
    return (
        not is_compiling()
        and type(x) is Tensor
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


def plain(x: Any, device: str) -> bool:
    return type(x) is Tensor and x.device.type == device and x.dtype in FLOAT_TYPES and x.is_contiguous()


def is_changed(module: Module, child: Child) -> bool:
    """Whether a call of a child that a kernel stands for does another thing than its class of the probe, or more."""
    name, cls = child
    found: Any = module._modules.get(name)
    if type(found) is not cls:
        return True
    replaced = None if found is None else found.__dict__.get("forward")
    return not (replaced is None or is_ours(replaced)) or has_hooks(found)


def has_hooks(module: Module | None) -> bool:
    """Whether a call of the module calls hooks, too; a kernel that stands for it would not."""
    return module is not None and bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
    )


def child_of(module: Module, name: str) -> Child:
    """A child by name, with its class; that of None for a method of the name."""
    return name, type(module._modules.get(name))


def computes_weights(module: Module) -> bool:
    """Whether its weight or bias is no parameter, but made of some for each call: a parametrization, pruning."""
    return is_parametrized(module) or bool(module.__dict__.keys() & {"weight", "bias"})


def with_signature(bound: functools.partial[Any]) -> functools.partial[Any]:
    """Give a forward the arguments of the module's own one, which trainers and ``generate`` look for."""
    _, *arguments = inspect.signature(type(bound.args[0]).forward).parameters.values()
    bound.__signature__ = inspect.Signature([one.replace(annotation=one.empty) for one in arguments])  # type: ignore[attr-defined]
    return bound
