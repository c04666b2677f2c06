"""The members of loaders: functions of ``precast.ops``, and those of this folder's modules by their older names.

Each exists once, over the ops of precast. In plain torch it is the same function, whose calls of ops become calls of
the references: torch differentiates it, and no kernel is loaded.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from precast._dispatch import namespace
from precast._load.handover import NAMESPACE

Members: TypeAlias = Mapping[str, Any]


def kernel(name: str) -> Callable[..., Any]:
    """An op of precast, whose kernels are loaded at the first call."""
    from precast import ops

    ops.define(name)
    return namespace.overload(name)


def reference(name: str) -> Callable[..., Any]:
    """The same op in plain torch. It checks all of its arguments first, as a kernel does."""
    from precast.ops import _folders
    from precast.ops._written import checked

    kernel(name)
    return checked(namespace.overload(name), _folders.reference(name))


def members(modules: Iterable[str], functions: Iterable[str], ops: Iterable[str], *, plain: bool) -> Members:
    """The functions of some modules of this folder, some of ``precast.ops``, and some ops themselves, by name."""
    from precast import ops as public

    found = {name: getattr(public, name) for name in functions} | {name: kernel(name) for name in ops}
    for one in modules:
        module = importlib.import_module(f"precast.compat.{one}")
        found |= {name: getattr(module, name) for name in module.__all__}
    return {name: plainly(member) for name, member in found.items()} if plain else found


def plainly(member: Any) -> Any:
    """A function that computes in plain torch, or a class whose methods do."""
    if isinstance(member, type):
        methods = {name: plainly(one) for name, one in vars(member).items() if callable(one) and name[0] != "_"}
        return type(member)(member.__name__, (member,), methods)

    @functools.wraps(member)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _plain_torch()():
            return member(*args, **kwargs)

    return call


@functools.cache
def _plain_torch() -> type[Any]:
    """A mode of torch in which each op of ours is its reference."""
    import torch
    from torch.overrides import TorchFunctionMode

    class PlainTorch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ours = isinstance(func, torch._ops.OpOverload) and func.namespace == NAMESPACE
            return reference(func._opname)(*args) if ours else func(*args, **(kwargs or {}))

    return PlainTorch
