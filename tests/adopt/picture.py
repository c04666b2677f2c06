"""What a model is, bit for bit: its objects by identity, and what each of them holds."""

from __future__ import annotations

import random
import types
from collections import deque
from typing import Any

import numpy as np
import torch

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def picture(*roots: Any) -> dict[str, Any]:
    """By path, each object that can be reached from the roots. Two pictures are equal if nothing was changed."""
    found: dict[str, Any] = {}
    seen: dict[int, str] = {}
    for index, root in enumerate(roots):
        _draw(str(index), root, found, seen)
    return found | {
        "torch": _bits(torch.get_rng_state()),
        "cuda": _bits(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else b"",
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tobytes(),
        "settings": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The paths that differ."""
    return [path for path in {**before, **after} if before.get(path) != after.get(path)]


def _draw(path: str, one: Any, found: dict[str, Any], seen: dict[int, str]) -> None:
    if type(one) in _ATOMS:
        found[path] = one
        return
    found[path] = (id(one), type(one))
    if id(one) in seen:
        return
    seen[id(one)] = path
    if isinstance(one, torch.Tensor) and one.device.type != "meta":
        found[f"{path} bits"] = (one.shape, one.stride(), one.dtype, one.requires_grad, one.data_ptr(), _bits(one))
        _draw(f"{path}.grad", one.grad if one.is_leaf else None, found, seen)
    for name, part in _parts(one):
        _draw(f"{path}.{name}", part, found, seen)


def _bits(one: torch.Tensor) -> bytes:
    return one.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()


def _parts(one: Any) -> list[tuple[Any, Any]]:
    parts: list[tuple[Any, Any]] = []
    if isinstance(one, dict):
        parts += one.items()
    elif isinstance(one, (list, tuple, deque, set)):
        parts += enumerate(one)
    elif isinstance(one, np.ndarray):
        parts.append(("array", one.tobytes()))
    elif isinstance(one, torch.Generator):
        parts.append(("state", _bits(one.get_state())))
    elif isinstance(one, types.FunctionType):
        parts += [(f"cell {i}", cell.cell_contents) for i, cell in enumerate(one.__closure__ or ())]
    elif isinstance(one, torch.jit.ScriptModule):
        parts += [*one.named_parameters(), *one.named_buffers(), *_scripted(one)]
    elif isinstance(one, torch.nn.Module):
        parts += vars(one).items()
        for cls in type(one).__mro__[:-1]:
            parts += ((f"{cls.__name__}.{n}", v) for n, v in vars(cls).items() if n != "__slotnames__")
    elif type(one).__module__.partition(".")[0] in ("transformers", "tests"):
        parts += vars(one).items() if hasattr(one, "__dict__") else ()
        parts += ((name, getattr(one, name)) for name in getattr(one, "__slots__", ()))
    return parts


def _scripted(one: Any) -> list[tuple[str, Any]]:
    names = one._concrete_type.get_attributes()
    return [(name, one._c.getattr(name)) for name in names if not isinstance(one._c.getattr(name), torch.Tensor)]
