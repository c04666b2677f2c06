"""An instance with a replaced method: how it is told apart, and whether it and a call are as the probe saw them.

What replaces a method is a ``functools.partial`` of a function of :mod:`precast._adopt.forwards`, with the instance as
its first argument. It is pickled and copied with its module. Python looks such a method up without saying for which
instance, so a shallow copy would call it for the original: :func:`put` also makes each copy bind its own.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from precast._adopt.source import Unreadable, fingerprint, fingerprint_of_functions, what_runs
from precast.ops._checks import FLOAT_TYPES

Methods = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Seen:
    """What a proof has seen of a module: its class, a method, the methods that it calls, and the attributes they read.

    Without those that the replacement reads in each call. ``digest`` is the fingerprint of the methods, by which a copy
    in another process knows whether they are the same there.
    """

    cls: type[Any]
    method: str
    digest: str
    function: Any
    called: Methods
    attributes: tuple[tuple[str, Any], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return _seen_again, (
            self.cls,
            self.method,
            self.digest,
            tuple(name for name, _ in self.called),
            self.attributes,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Seen:
        return dataclasses.replace(self, attributes=copy.deepcopy(self.attributes, memo))


def _seen_again(cls: Any, method: str, digest: str, called: tuple[str, ...], attributes: Any) -> Seen:
    try:
        function = getattr(cls, method) if _digest(cls, method) == digest else None
    except (Unreadable, AttributeError):
        function = None  # so that the own method runs
    return Seen(cls, method, digest, function, _methods(cls, called), attributes)


def _methods(cls: Any, names: Iterable[str]) -> Methods:
    return tuple((name, getattr(cls, name, None)) for name in names)


def _digest(cls: Any, method: str) -> str:
    """The fingerprint of a method; of a decorated one, that of the function inside."""
    function = getattr(cls, method)
    inside = inspect.unwrap(function)
    return fingerprint(cls, method) if inside is function else fingerprint_of_functions(inside)


Child = tuple[str, Seen]  # of a child, its name and what the probe has seen of it
# A partial cannot be told apart from those of others, except by its function.
_OURS: list[Callable[..., Any]] = []
ROTATE = "apply_rotary_pos_emb"  # the function of a module of transformers that its attention calls
LOSS = "_loss_function"  # what the setter of transformers' ``loss_function`` writes
GATE = "_apply_gate"  # what transformers calls between the projections of experts
_METHODS = ("forward", GATE, LOSS)
_COPIED = ("__reduce_ex__", "_replicate_for_data_parallel")  # what is called to copy a module
# Values of these types are the same if they are equal; others, if they are one object.
_PLAIN = (bool, int, float, str, types.MethodType)
_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing


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
        for name, copying in zip(_COPIED, (_reduced, _replicated), strict=True):
            module.__dict__.setdefault(name, functools.partial(copying, module))


def take(module: Module, attribute: str) -> None:
    """Give an instance its own method again."""
    module.__dict__.pop(attribute, None)
    if not any(is_bound(module.__dict__.get(name)) for name in _METHODS):
        for name in _COPIED:
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


def is_traced() -> bool:
    """Whether a graph is made of what runs, for ``torch.compile``, ``torch.export`` or ``torch.jit.trace``."""
    return _is_compiling() or _is_tracing()


def own(module: Module, *given: Any, **named: Any) -> Any:
    """The module's own forward."""
    return type(module).forward(module, *given, **named)


def seen(module: Module, method: str = "forward", live: tuple[str, ...] = ()) -> Seen:
    """What a proof sees of a module; its replacement reads the ``live`` attributes in each call."""
    cls: Any = type(module)
    (_, *called), names = what_runs(cls, method)
    values = tuple((name, module.__dict__[name]) for name in sorted(names - {*live}) if name in module.__dict__)
    shadows = tuple((name, module.__dict__.get(name)) for name in called)
    return Seen(cls, method, _digest(cls, method), getattr(cls, method), _methods(cls, called), values + shadows)


def seen_forward(module: Module) -> Seen:
    """The forward of a module alone: its replacement calls a copy of it, which reads everything in each call."""
    cls: Any = type(module)
    return Seen(cls, "forward", _digest(cls, "forward"), cls.forward, (), ())


def unproved(module: Module, proof: Seen | None) -> bool:
    """Whether the own method must run: it is traced or compiled, or was replaced, or an attribute has another value."""
    if _is_compiling() or _is_tracing():
        return True
    if proof is None:
        return False
    if getattr(type(module), proof.method) is not proof.function:
        return True
    return bool(proof.attributes) and _has_changed(module, proof)


def _has_changed(module: Module, proof: Seen) -> bool:
    here, cls = module.__dict__, type(module)
    return any(not _same(here.get(name), value) for name, value in proof.attributes) or any(
        getattr(cls, name) is not function for name, function in proof.called
    )


def _same(here: Any, value: Any) -> bool:
    return here is value or (type(here) is type(value) and type(value) in _PLAIN and here == value)


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


def plain(x: Any, device: str) -> bool:
    return type(x) is Tensor and x.device.type == device and x.dtype in FLOAT_TYPES and x.is_contiguous()


def is_changed(module: Module, child: Child) -> bool:
    """Whether a call of a child that a kernel stands for does another thing than the probe has seen, or more."""
    name, proof = child
    found: Any = module._modules.get(name)
    if found is None:  # a method of the name, which the proof of the module has seen
        return proof.cls is not type(None)
    if type(found) is not proof.cls or unproved(found, proof):
        return True
    replaced = found.__dict__.get("forward")
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


def child_of(module: Module, name: str, live: tuple[str, ...] = ()) -> Child:
    """A child by name, with what a proof sees of it; nothing of a method of the name."""
    child = module._modules.get(name)
    return name, Seen(type(None), "", "", None, (), ()) if child is None else seen(child, live=live)


def state_of(module: Module, inside: tuple[Module, ...] = ()) -> Hashable:
    """All that a proof can see of a module and its children, but for the values of parameters.

    Equal states have one proof. An object that says nothing of its value is equal to itself alone.
    """
    if module in inside:
        return "itself", inside.index(module)
    inside = (*inside, module)
    return type(module), tuple((name, _plain(value, inside)) for name, value in sorted(module.__dict__.items()))


class _Same:
    """Equal to one that has the same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _plain(value: Any, inside: tuple[Module, ...]) -> Hashable:
    kind = type(value)
    if isinstance(value, Module):
        return state_of(value, inside)
    if kind is torch.nn.Parameter:
        return kind, value.shape, value.dtype, value.device
    if kind is types.MethodType and value.__self__ is inside[-1]:
        return kind, value.__func__
    if kind in (tuple, list, torch.Size):
        return kind, tuple(_plain(one, inside) for one in value)
    if kind in (dict, OrderedDict):
        return kind, tuple((_plain(one, inside), _plain(other, inside)) for one, other in value.items())
    if kind in (set, frozenset):
        return kind, frozenset(_plain(one, inside) for one in value)
    if kind in (type(None), bool, int, float, str, bytes, torch.dtype, torch.device):
        return kind, value
    return _Same(value)


def computes_weights(module: Module) -> bool:
    """Whether its weight or bias is no parameter, but made of some for each call: a parametrization, pruning."""
    return is_parametrized(module) or bool(module.__dict__.keys() & {"weight", "bias"})


def with_signature(function: Callable[..., Any], module: Module, device: str) -> functools.partial[Any]:
    """A forward with the arguments of the module's own one, which trainers and ``generate`` look for."""
    bound = functools.partial(function, module, device, _proof=seen_forward(module))
    _, *arguments = inspect.signature(type(module).forward).parameters.values()
    bound.__signature__ = inspect.Signature([one.replace(annotation=one.empty) for one in arguments])  # type: ignore[attr-defined]
    return bound
