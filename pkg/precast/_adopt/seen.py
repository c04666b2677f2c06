"""What a proof has seen of a module: whether the module is still so, and which others the proof holds for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from precast._adopt.instances import has_hooks, is_adopted, is_ours
from precast._adopt.source import Unreadable, fingerprint, fingerprint_of_functions, what_runs

# Values of these types are the same if they are equal; others, if they are one object.
_PLAIN = (bool, int, float, str, types.MethodType)
_is_compiling, _is_tracing = torch.compiler.is_compiling, torch._C._is_tracing
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
        called = tuple(name for name, _ in self.called)
        return _seen_again, (self.cls, self.method, self.digest, called, self.attributes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Seen:
        return dataclasses.replace(self, attributes=copy.deepcopy(self.attributes, memo))


def _seen_again(cls: Any, method: str, digest: str, called: tuple[str, ...], attributes: Any) -> Seen:
    try:
        function = getattr(cls, method) if digest_of(cls, method) == digest else None
    except (Unreadable, AttributeError):
        function = None  # matches no method, so the module's own runs
    return Seen(cls, method, digest, function, _methods(cls, called), attributes)


def _methods(cls: Any, names: Iterable[str]) -> Methods:
    return tuple((name, getattr(cls, name, None)) for name in names)


def digest_of(cls: Any, method: str) -> str:
    """The fingerprint of a method; of a decorated one, that of the function inside."""
    function = getattr(cls, method)
    inside = inspect.unwrap(function)
    return fingerprint(cls, method) if inside is function else fingerprint_of_functions(inside)


Child = tuple[str, Seen]  # of a child, its name and what the probe has seen of it


def is_traced() -> bool:
    """Whether a graph is made of what runs, for ``torch.compile``, ``torch.export`` or ``torch.jit.trace``."""
    return _is_compiling() or _is_tracing()


def seen(module: Module, method: str = "forward", live: tuple[str, ...] = ()) -> Seen:
    """What a proof sees of a module; its replacement reads the ``live`` attributes in each call."""
    cls: Any = type(module)
    (_, *called), names = what_runs(cls, method)
    values = tuple((name, module.__dict__[name]) for name in sorted(names - {*live}) if name in module.__dict__)
    shadows = tuple((name, module.__dict__.get(name)) for name in called)
    return Seen(cls, method, digest_of(cls, method), getattr(cls, method), _methods(cls, called), values + shadows)


def seen_forward(module: Module) -> Seen:
    """The forward of a module alone: its replacement calls a copy of it, which reads everything in each call."""
    cls: Any = type(module)
    return Seen(cls, "forward", digest_of(cls, "forward"), cls.forward, (), ())


def unproved(module: Module, proof: Seen | None) -> bool:
    """Whether the own method must run: it is traced or compiled, was put back or patched, or an attribute differs."""
    if _is_compiling() or _is_tracing():
        return True
    return proof is not None and (not is_adopted(module) or _has_changed(module, proof))


def _has_changed(module: Module, proof: Seen) -> bool:
    cls = type(module)
    if getattr(cls, proof.method) is not proof.function:
        return True
    if not proof.attributes:
        return False
    here = module.__dict__
    return any(not _same(here.get(name), value) for name, value in proof.attributes) or any(
        getattr(cls, name) is not function for name, function in proof.called
    )


def _same(here: Any, value: Any) -> bool:
    return here is value or (type(here) is type(value) and type(value) in _PLAIN and here == value)


def is_changed(module: Module, child: Child) -> bool:
    """Whether a call of a child that a kernel stands for does another thing than the probe has seen, or more."""
    name, proof = child
    found: Any = module._modules.get(name)
    if found is None:  # a method of the name, which the proof of the module has seen
        return proof.cls is not type(None)
    if type(found) is not proof.cls or _has_changed(found, proof):
        return True
    replaced = found.__dict__.get("forward")
    return not (replaced is None or is_ours(replaced)) or has_hooks(found)


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
