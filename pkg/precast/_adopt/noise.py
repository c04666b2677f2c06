"""The noise of a model: how far its outputs are from themselves if what must not matter changes.

The batch comes in another order; the dtype is wider, in a copy; and each module that has a kernel errs by as much as
the probe allows. The last needs no copy, and it also holds where a model computes in float32 whatever its dtype is.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import instances
from precast._adopt.measured import Batch, Measured, is_dense, measure
from precast._adopt.recognise import Exact, is_sharded
from precast._adopt.state import State, attempted
from precast.ops._checks import FLOAT_TYPES

# The probe allows a relative error of 2**-20 before the last rounding; so one 16-bit number in some hundred moves.
_ERROR, _RARE = 2.0**-20, 2.0**-8
_RUNS = 2


def noises(
    model: Module, batch: Batch, found: Measured, state: State, exact: Iterable[tuple[Module, Exact]]
) -> tuple[list[Measured], list[str]]:
    """The untouched model in these ways, and the reasons where one is impossible."""
    noises, reasons = [], []
    tensors = [value for value in batch.values() if isinstance(value, Tensor) and value.dim()]
    dense = all(is_dense(value) for value in tensors)
    if not dense or len({len(value) for value in tensors} - {1}) > 1 or all(value.dim() == 1 for value in tensors):
        reasons.append("noise of the batch in another order: its tensors are not rows of one batch")
    else:
        turned = {name: _turned(value) for name, value in batch.items()}
        noises.append(_turned_back(measure(model, turned, state, noise=True), found))
    with state.of_one_call():
        wider, reason = _in_a_wider_dtype(model, batch)
    if wider is None:
        reasons.append(f"noise in a wider dtype: {reason}")
    else:
        noises.append(wider)
    noises += [_shaken(model, batch, state, list(exact), run) for run in range(_RUNS)]
    return noises, reasons


def _in_a_wider_dtype(model: Module, batch: Batch) -> tuple[Measured | None, str]:
    """A copy of the model on the batch, or why there is none."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is None:
        return None, "the model has no parameters"
    if is_sharded(model, recurse=True):
        return None, "the model is sharded"
    wide = torch.float64 if first.dtype == torch.float32 else torch.float32
    needed = 3 * sum(p.numel() for p in model.parameters()) * wide.itemsize
    if needed > _free_memory(first.device):
        return None, f"it needs {needed / 1e9:.1f} GB of memory"
    given = {
        name: value.to(wide) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }
    wider, reason = attempted(lambda: copy.deepcopy(model).to(wide))
    if wider is None:
        return None, reason
    found = measure(wider, given, State(wider, given), noise=True)
    return (None, found.failed["outputs"]) if "outputs" in found.failed else (found, "")


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _shaken(model: Module, batch: Batch, state: State, exact: list[tuple[Module, Exact]], run: int) -> Measured:
    """The model, each of whose modules with a kernel errs by as much as the probe allows."""
    try:
        for number, (module, fate) in enumerate(exact):
            is_loss = fate.attribute == instances.LOSS
            own: Any = module.loss_function if is_loss else getattr(module, fate.attribute)
            with state.patching(module):
                module.__dict__[fate.attribute] = functools.partial(_with_errors, own, number * _RUNS + run)
        return measure(model, batch, state, noise=True)
    finally:
        for module, fate in exact:
            with state.patching(module):
                module.__dict__.pop(fate.attribute, None)


def _with_errors(own: Callable[..., Any], seed: int, /, *given: Any, **named: Any) -> Any:
    return _erring(own(*given, **named), seed)


def _erring(result: Any, seed: int) -> Any:
    if isinstance(result, Mapping):
        return type(result)(**{name: _erring(value, seed) for name, value in result.items()})
    if type(result) is tuple:
        return tuple(_erring(value, seed) for value in result)
    if type(result) is not Tensor or result.dtype not in FLOAT_TYPES:
        return result
    generator = torch.Generator(result.device).manual_seed(seed)
    chance = torch.rand(result.shape, generator=generator, device=result.device) * 2 - 1
    if result.dtype == torch.float32:
        return result * (1 + chance * _ERROR)
    moved = chance.sign() * (chance.abs() < _RARE) * torch.finfo(result.dtype).eps
    return (result.float() * (1 + moved)).to(result.dtype)


def _turned(value: Any) -> Any:
    return value.flip(0) if isinstance(value, Tensor) and value.dim() else value


def _turned_back(found: Measured, like: Measured) -> Measured:
    outputs = {name: _turned(value) for name, value in found.outputs.items() if name in like.outputs}
    return Measured(outputs, found.gradients, found.failed)
