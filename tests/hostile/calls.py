"""The calls that are made hostile: the example in each public function's docstring, and the example of each op."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import precast
from precast._builder import public
from precast._builder.catalogue import FAMILIES
from precast.compat import members
from precast.ops import _folders

Path = tuple[str | int, ...]  # an argument by name, and an item of it by number


@dataclass(frozen=True, eq=False)
class Call:
    """A call that works: a function with its arguments by name, on the CPU."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    kinds: Mapping[str, str]  # the type that each argument is said to have
    devices: tuple[str, ...]
    raw: bool = False  # an op, which takes its arguments by position

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        return self.function(*arguments.values()) if self.raw else self.function(**arguments)

    def leaves(self) -> Iterator[tuple[Path, Any]]:
        """Every argument, and every item of a list."""
        for name, value in self.arguments.items():
            yield (name,), value
            if isinstance(value, list | tuple):
                yield from (((name, index), item) for index, item in enumerate(value))


@functools.cache
def calls() -> Mapping[str, Call]:
    """All calls by name."""
    return {call.name: call for call in (*_public_calls(), *_op_calls())}


def _public_calls() -> Iterator[Call]:
    for name, room in public.rooms().items():
        if room != public.OPS:
            continue  # optimizers have histories of their own, and modules are made of functions
        function = getattr(precast.ops, name)
        families = [family for family in FAMILIES if family.name in public.families_of(name)]
        devices = tuple(sorted(set.intersection(*(set(family.devices) for family in families))))
        signature = inspect.signature(function)
        kinds = {key: str(parameter.annotation) for key, parameter in signature.parameters.items()}
        for number, (args, kwargs) in enumerate(_recorded(name, function, "cpu" in devices)):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            yield Call(f"{name}#{number}" if number else name, function, dict(bound.arguments), kinds, devices)


def _recorded(name: str, function: Callable[..., Any], on_cpu: bool) -> list[tuple[Any, Any]]:
    """The arguments with which a function's example calls it."""
    found: list[tuple[Any, Any]] = []

    def record(*args: Any, **kwargs: Any) -> Any:
        args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
        found.append((copied(args), copied(kwargs)))
        return function(*args, **kwargs)

    ops = SimpleNamespace(**{other: getattr(precast.ops, other) for other in precast.ops.__all__})
    setattr(ops, name, record)
    text = inspect.cleandoc((inspect.getdoc(function) or "").partition("Example::\n\n")[2]).replace('"cuda"', '"cpu"')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
        model(x).sum().backward()
        try:
            exec(text, {"torch": torch, "precast": SimpleNamespace(ops=ops), "model": model, "x": x})  # noqa: S102
        except RuntimeError:
            if on_cpu:
                raise
    assert found, f"the example of {name} does not call it"
    return found


def _op_calls() -> Iterator[Call]:
    for family in FAMILIES:
        for name in family.op_names:
            if _folders.is_planned(name):
                continue  # a step of an optimizer, whose arguments other ops have made
            op = members.kernel(name)
            schema = op._schema.arguments  # type: ignore[attr-defined]
            named = dict(zip((a.name for a in schema), _folders.arguments(name), strict=False))
            named |= {a.name: a.default_value for a in schema[len(named) :]}
            kinds = {argument.name: str(argument.type) for argument in schema}
            yield Call(f"torch.ops.precast.{name}", op, named, kinds, tuple(family.devices), raw=True)


# ---- copies ----

Place = Callable[[Any], Any]  # gives the storage that holds the bytes of another one


def copied(value: Any, place: Place | None = None) -> Any:
    """A copy of arguments; tensors that share memory share it again, where ``place`` puts it."""
    seen: dict[int, Any] = {}
    kept: list[Any] = []

    def storage(tensor: Tensor) -> Any:
        key = tensor.untyped_storage()._cdata
        if key not in seen:
            kept.append(tensor)
            seen[key] = (place or torch.UntypedStorage.clone)(tensor.untyped_storage())
        return seen[key]

    def tensor_copy(old: Tensor) -> Tensor:
        if not is_plain(old):
            return old
        if id(old) not in seen:
            kept.append(old)
            new = torch.empty(0, dtype=old.dtype, device=storage(old).device)
            new.set_(storage(old), old.storage_offset(), old.size(), old.stride())
            new = torch._neg_view(new) if old.is_neg() else new
            seen[id(old)] = torch.nn.Parameter(new) if isinstance(old, torch.nn.Parameter) else new
            seen[id(old)].requires_grad_(old.requires_grad)
            if old.grad is not None:
                seen[id(old)].grad = tensor_copy(old.grad)
        found: Tensor = seen[id(old)]
        return found

    return mapped(value, tensor_copy)


def is_plain(t: Tensor) -> bool:
    """Whether a tensor is described by its memory, and all of it is there."""
    return (
        t.layout == torch.strided
        and t.device.type != "meta"
        and not (t.is_conj() or t.is_inference() or t._is_zerotensor())
        and t.untyped_storage().nbytes() >= extent(t)
    )


def extent(t: Tensor) -> int:
    """How many bytes of its storage a tensor spans."""
    if t.numel() == 0:
        return 0
    last = t.storage_offset() + sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Arguments with each tensor replaced; one list that stands at two places stays one."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return type(value)(mapped(item, change) for item in value) if type(value) in (list, tuple) else value


def tensors(value: Any) -> list[Tensor]:
    """All tensors of arguments or results."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [found for item in value for found in tensors(item)] if isinstance(value, list | tuple) else []
