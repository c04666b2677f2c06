"""What the calls of a model may write: written down before the first one, put back after each.

A forward may count, average, observe, cache, replace its children or rewrite its configuration. So all that can be
reached from the model is kept: attributes, containers, closures, classes, and the memory of tensors. Buffers and small
tensors are copied at once; others, above all the parameters, when an op is about to write them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt.memory import Memory, Watch, is_plain
from precast._adopt.quiet import OF_MODULES, refill

T = TypeVar("T")
_MOST = 300_000  # objects
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
# The objects of these packages are no state of a model: they belong to the process.
_FOREIGN = ("torch.distributed", "torch.cuda", "torch._dynamo")
_WRITTEN_BY_PYTHON = {"__slotnames__", "__annotations_cache__", "__annotate_func__"}


class Unkept(Exception):
    """The state cannot be kept; the text says why."""


def attempted(function: Callable[[], T]) -> tuple[T | None, str]:
    """What a call returns or, in words, what it raised.

    Only for calls of models and of their attributes: these are anybody's code and may raise anything, which the report
    says.
    """
    try:
        return function(), ""
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"


class State:
    """All that is reachable from ``roots``, as it was when this was made."""

    def __init__(self, *roots: Any) -> None:
        self.changed_classes: set[type[Any]] = set()
        self.watches = True
        self._settings = _settings()
        self._refused: set[str] = set()
        self._puts: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that no id is reused
        self._memory: dict[int, Memory] = {}
        self._contents: dict[int, dict[Any, Any]] = {}
        models = [root for root in roots if isinstance(root, Module)]
        self._names = {id(p): name for model in models for name, p in model.named_parameters()}
        self._buffers = {id(b) for model in models for b in model.buffers()}
        waiting = list(roots)
        for one in waiting:  # it grows
            if type(one) in _ATOMS or id(one) in self._seen:
                continue
            self._seen[id(one)] = one
            waiting += self._taken(one)
            if len(self._seen) > _MOST:
                raise Unkept(f"more than {_MOST} objects can be reached from the model, too many to put back")

    @contextlib.contextmanager
    def of_one_call(self, *, watch: bool = False) -> Iterator[None]:
        """Put everything back after what runs here; ``watch`` copies parameters before they are written."""
        devices = list({memory.data.device for memory in self._memory.values() if memory.data.is_cuda})
        with contextlib.ExitStack() as stack:
            stack.callback(self.put_back)
            stack.enter_context(torch.random.fork_rng(devices=devices))
            for put, value in self._settings:
                stack.callback(put, value)
            if watch and any(memory.copy is None for memory in self._memory.values()):
                stack.enter_context(Watch(self._memory))
            yield

    def put_back(self) -> None:
        """Give every object what it had; what refuses it is lost."""
        puts = [*self._puts, *(memory.put_back for memory in self._memory.values())]
        with torch.no_grad():
            if attempted(lambda: [put() for put in puts])[1]:
                self._refused.update(reason for put in puts if (reason := attempted(put)[1]))

    def lost(self) -> tuple[str, ...]:
        """What could not be put back: tensors that something wrote past all ops, objects that refuse to be written."""
        return (*sorted(self._refused), *(memory.name for memory in self._memory.values() if memory.is_lost()))

    @contextlib.contextmanager
    def patching(self, module: Module) -> Iterator[None]:
        """Let the attributes that an instance gets and loses here be put back like this."""
        place = module.__dict__
        content, before = self._contents.get(id(place), {}), dict(place)
        yield
        for name in [name for name, value in before.items() if place.get(name) is not value]:
            content.pop(name, None)
        content.update({name: value for name, value in place.items() if before.get(name) is not value})

    def fill(self, place: dict[Any, Any], content: Mapping[Any, Any]) -> None:
        """Give a dictionary this content, and let it be put back like this."""
        for one in (place, self._contents.get(id(place), {})):
            refill(one, content)

    def _taken(self, one: Any) -> list[Any]:
        """Write an object down; what it refers to."""
        if isinstance(one, Tensor):
            return self._take_tensor(one)
        if isinstance(one, dict):
            return self._take_dict(one)
        if isinstance(one, (list, set, deque)):
            self._puts.append(functools.partial(_put_items, one, list(one)))
            return list(one)
        if isinstance(one, (tuple, frozenset)):
            return list(one)
        if isinstance(one, types.MethodType):
            return [one.__self__, one.__func__]
        if isinstance(one, functools.partial):
            return [one.func, one.args, one.keywords]
        if isinstance(one, types.FunctionType):
            return self._take_function(one)
        if isinstance(one, torch.Generator):
            self._puts.append(functools.partial(_put_generator, one, one.get_state()))
        elif isinstance(one, torch.jit.ScriptModule):
            return self._take_script(one)
        elif type(one).__module__ == "numpy" and hasattr(one, "tobytes") and hasattr(one, "flags"):
            self._puts.append(functools.partial(_put_array, one, one.copy()))
        elif not isinstance(one, (type, types.ModuleType)) and not _is_foreign(type(one)):
            return self._take_object(one)
        return []

    def _take_tensor(self, one: Tensor) -> list[Any]:
        found: list[Any] = [vars(one)] if getattr(one, "__dict__", None) else []
        if not is_plain(one):
            return found
        grad = one.grad if one.is_leaf else None
        self._puts.append(functools.partial(_put_tensor, one, one.detach(), _view_of(one), grad, one.requires_grad))
        key, name = one.untyped_storage()._cdata, self._names.get(id(one), f"a tensor of shape {tuple(one.shape)}")
        if key not in self._memory:
            self._memory[key] = Memory.of(one, name, now=id(one) in self._buffers)
        return [*found, grad]

    def _take_dict(self, one: dict[Any, Any]) -> list[Any]:
        content = self._contents[id(one)] = dict(one)
        self._puts.append(functools.partial(_put_dict, one, content))
        hooks = [value for name, value in content.items() if name in OF_MODULES and isinstance(value, dict)]
        for value in hooks:  # but not what the hooks refer to, which is the state of others
            self._seen[id(value)] = value
            self._contents[id(value)] = dict(value)
            self._puts.append(functools.partial(_put_dict, value, self._contents[id(value)]))
        return list(content.values())

    def _take_function(self, one: types.FunctionType) -> list[Any]:
        values = []
        for cell in one.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                values.append(cell.cell_contents)
                self._puts.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
        return [*values, one.__dict__, one.__defaults__, one.__kwdefaults__]

    def _take_script(self, one: Any) -> list[Any]:
        for name in one._concrete_type.get_attributes():
            value = one._c.getattr(name) if one._c.hasattr(name) else None
            if value is not None and not isinstance(value, Tensor):
                self._puts.append(functools.partial(one._c.setattr, name, value))
        return [*one.children(), *one.parameters(recurse=False), *one.buffers(recurse=False)]

    def _take_object(self, one: Any) -> list[Any]:
        found: list[Any] = []
        attributes = getattr(one, "__dict__", None)
        if type(attributes) is dict:
            self._puts.append(functools.partial(_put_object, one, type(one), attributes))
            found.append(attributes)
        slots = [name for cls in type(one).__mro__ for name in _slots(cls) if hasattr(one, name)]
        for name in slots:
            value = getattr(one, name)
            self._puts.append(functools.partial(object.__setattr__, one, name, value))
            found.append(value)
        if isinstance(one, Module):
            for cls in type(one).__mro__[:-1]:
                found += self._take_class(cls)
        return found

    def _take_class(self, cls: type[Any]) -> list[Any]:
        if id(cls) in self._seen:
            return []
        self._seen[id(cls)] = cls
        whole, before = dict(vars(cls)), _attributes(cls)

        def put() -> None:
            if not _are_same(dict(vars(cls)), whole) and not _are_same(now := _attributes(cls), before):
                self.changed_classes.add(cls)
                for name in now.keys() - before.keys():
                    delattr(cls, name)
                for name, value in before.items():
                    setattr(cls, name, value)

        self._puts.append(put)
        return [value for value in before.values() if isinstance(value, (dict, list, set, deque, Tensor))]


def _is_foreign(cls: type[Any]) -> bool:
    module = str(cls.__module__)
    return module.partition(".")[0] in sys.stdlib_module_names or module.startswith(_FOREIGN)


def _slots(cls: type[Any]) -> tuple[str, ...]:
    names = vars(cls).get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__"))


def _attributes(cls: type[Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if name not in _WRITTEN_BY_PYTHON}


def _are_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether both have the same objects in the same order."""
    if not one and not other:  # as most dictionaries of hooks
        return True
    return (
        len(one) == len(other)
        and all(map(operator.is_, one.values(), other.values()))
        and all(map(operator.eq, one, other))
    )


def _put_dict(one: dict[Any, Any], content: dict[Any, Any]) -> None:
    if not _are_same(one, content):
        plain: Any = OrderedDict if isinstance(one, OrderedDict) else dict
        plain.clear(one)
        for name, value in content.items():
            plain.__setitem__(one, name, value)


def _put_items(one: Any, items: list[Any]) -> None:
    if len(one) == len(items) and all(map(operator.is_, one, items)):
        return
    one.clear()
    (one.update if isinstance(one, set) else one.extend)(items)


def _put_object(one: Any, cls: type[Any], attributes: dict[str, Any]) -> None:
    if type(one) is not cls:
        one.__class__ = cls
    if one.__dict__ is not attributes:
        one.__dict__ = attributes


def _put_generator(one: torch.Generator, state: Tensor) -> None:
    one.set_state(state)


def _put_array(one: Any, copy: Any) -> None:
    if one.tobytes() != copy.tobytes():
        one[...] = copy


def _put_tensor(one: Tensor, alias: Tensor, view: tuple[Any, ...], grad: Tensor | None, requires_grad: bool) -> None:
    if _view_of(one) != view:
        one.data = alias
    if one.is_leaf:
        if one.requires_grad != requires_grad:
            one.requires_grad_(requires_grad)
        if one.grad is not grad:
            one.grad = grad


def _view_of(one: Tensor) -> tuple[Any, ...]:
    return one.untyped_storage()._cdata, one.dtype, one.shape, one.stride(), one.storage_offset()


def _settings() -> list[tuple[Callable[[Any], Any], Any]]:
    """What a forward may set for the whole process, and how it is put back."""
    numpy: Any = sys.modules.get("numpy.random")
    return [
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()),
        (torch.set_grad_enabled, torch.is_grad_enabled()),
        (random.setstate, random.getstate()),
        *([] if numpy is None else [(numpy.set_state, numpy.get_state(legacy=False))]),
    ]
