"""The hooks of users: they do not fire while a model is examined.

A hook of torch or of a package that models are made of computes: spectral norm, FSDP2, adapters. All others may count,
print or send what they see, so they are taken out for a while, and the report says so.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.nn import Module
from torch.nn.modules import module as _module

OF_MODULES = frozenset({"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"})
_GLOBAL = (
    *(f"_global{name}" for name in OF_MODULES),
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
_COMPUTE = {"torch", "transformers", "timm", "diffusers", "accelerate", "peft", "bitsandbytes", "torchao", "optimum"}


@contextlib.contextmanager
def quiet(model: Module, fill: Callable[[dict[Any, Any], Mapping[Any, Any]], None]) -> Iterator[tuple[str, ...]]:
    """Take the hooks of users out of a model by ``fill``, and put them back; a line for the report if there are any."""
    places: list[Any] = [vars(one).get(name) for one in model.modules() for name in OF_MODULES]
    taken = [(place, dict(place), _computing(place)) for place in places if place]
    taken += [(hooks, dict(hooks), {}) for hooks in (p._backward_hooks for p in model.parameters()) if hooks]
    silent = {_origin(hook) for _, hooks, stay in taken for key, hook in hooks.items() if key not in stay}
    try:
        for place, _, stay in taken:
            fill(place, stay)
        yield (f"what the hooks of {', '.join(sorted(silent))} do: they are not called here",) if silent else ()
    finally:
        for place, hooks, _ in taken:
            fill(place, hooks)


@contextlib.contextmanager
def quiet_process() -> Iterator[None]:
    """Take the hooks of users for all modules out."""
    taken = [(place, dict(place)) for place in (vars(_module).get(name) for name in _GLOBAL) if place]
    try:
        for place, _ in taken:
            refill(place, _computing(place))
        yield
    finally:
        for place, hooks in taken:
            refill(place, hooks)


def refill(place: dict[Any, Any], content: Mapping[Any, Any]) -> None:
    """Give a dictionary this content, in this order."""
    place.clear()
    place.update(content)


def _computing(hooks: Mapping[int, Any]) -> dict[int, Any]:
    return {key: hook for key, hook in hooks.items() if _origin(hook) in _COMPUTE}


def _origin(hook: Any) -> str:
    """The package that a hook is defined in."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    owner = getattr(hook, "__self__", hook)
    named = owner if hasattr(owner, "__qualname__") else type(owner)
    return str(getattr(named, "__module__", "")).partition(".")[0]
