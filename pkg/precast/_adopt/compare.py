"""Compares an adopted model with the untouched one on a sample batch, and both with the model's own noise."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt.recognise import fsdp_units, is_sharded
from precast._adopt.report import Comparison

Batch = Mapping[str, Any]
Outputs = dict[str, Tensor]
# The names under which transformers returns and takes its cache of keys and values.
_CACHES = ("cache", "past_key_values")  # the second before transformers 5.24
_RESOLUTION = 2.0**-20  # some roundings of float32, as in the probe
_TINY = 1e-300
_ITEMS = 7  # any number that is not the count of the sample's labels


@dataclass(frozen=True)
class Measured:
    """The outputs of a model by name, its gradients by parameter, and what could not be had."""

    outputs: Outputs
    gradients: Outputs
    missing: tuple[str, ...]


def measure(model: Module, batch: Batch) -> Measured:
    """Run the model in evaluation mode on the batch. The model's gradients, modes and the random state stay."""
    missing: list[str] = []
    devices = [p.device for p in model.parameters() if p.is_cuda][:1]
    with _evaluating(model), torch.random.fork_rng(devices=devices):
        with torch.no_grad():
            result = _call(model, batch)
            outputs = {name: value.clone() for name, value in _tensors(result).items()}
            outputs |= _with_cache(model, batch, result)
            if "loss" in outputs and _counts_items(model):
                counted = _call(model, {**batch, "num_items_in_batch": _ITEMS})
                outputs["loss, num_items_in_batch"] = _tensors(counted)["loss"]
        if is_sharded(model, recurse=True):
            missing.append("gradients, and outputs with hidden parameters: the model is sharded")
            return Measured(outputs, {}, tuple(missing))
        with torch.no_grad(), hidden_parameters(model):
            hidden = _tensors(_call(model, batch))
        if any(value.isnan().any() for value in hidden.values()):
            missing.append("outputs with hidden parameters: the model reads parameters outside their module's forward")
        else:
            outputs |= {f"{name}, parameters hidden": value for name, value in hidden.items()}
        gradients: Outputs = {}
        try:
            gradients = _gradients(model, batch)
        except RuntimeError as error:
            missing.append(f"gradients: {_first_line(error)}")
    return Measured(outputs, gradients, tuple(missing))


def without_logits(found: Measured) -> Measured:
    """The same without the logits of the calls with labels."""
    with_labels = ("logits", "logits, parameters hidden")
    outputs = {name: value for name, value in found.outputs.items() if name not in with_labels}
    return Measured(outputs, found.gradients, found.missing)


def compare(untouched: Measured, adopted: Measured, noises: list[Measured]) -> tuple[Comparison, ...]:
    """One comparison per output, and one for the gradient that differs most in terms of its noise."""
    compared = [
        _compared(name, value, adopted.outputs.get(name), [noise.outputs.get(name) for noise in noises])
        for name, value in untouched.outputs.items()
    ]
    gradients = [
        (value, _compared(name, value, adopted.gradients.get(name), [n.gradients.get(name) for n in noises]))
        for name, value in untouched.gradients.items()
    ]
    # The few elements of a small parameter may show little noise by chance. A gradient of zero has no size.
    usual = statistics.median_low([one.noise / _size(value) for value, one in gradients if value.any()] or [0.0])
    fair = [
        Comparison(f"gradient of {one.output}", one.difference, max(one.noise, usual * _size(value)), 4)
        for value, one in gradients
    ]
    worst = max(fair, key=lambda one: (not one.holds, one.difference / max(one.noise, _TINY)), default=None)
    return (*compared, *(() if worst is None else (worst,)))


def noises(untouched: Module, batch: Batch, outputs: Measured) -> tuple[list[Measured], list[str]]:
    """The untouched model with its batch turned round, and in a wider dtype; the reasons where that is impossible."""
    found, reasons = [], []
    tensors = [value for value in batch.values() if isinstance(value, Tensor) and value.dim()]
    if len({len(value) for value in tensors} - {1}) > 1 or all(value.dim() == 1 for value in tensors):
        reasons.append("noise of the batch in another order: its tensors are not rows of one batch")
    else:
        found.append(_turned_back(measure(untouched, {name: _turned(value) for name, value in batch.items()}), outputs))
    wider = _in_a_wider_dtype(untouched, batch)
    if isinstance(wider, str):
        reasons.append(f"noise in a wider dtype: {wider}")
    else:
        found.append(wider)
    return found, reasons


def _in_a_wider_dtype(untouched: Module, batch: Batch) -> Measured | str:
    """A copy of the model on the batch, or why there is none."""
    first = next((p for p in untouched.parameters() if p.is_floating_point()), None)
    if first is None:
        return "the model has no parameters"
    wide = torch.float64 if first.dtype == torch.float32 else torch.float32
    size = sum(p.numel() for p in untouched.parameters()) * wide.itemsize
    if is_sharded(untouched, recurse=True):
        return "the model is sharded"
    if first.is_cuda and 3 * size > torch.cuda.mem_get_info(first.device)[0]:
        return f"it needs {3 * size / 1e9:.1f} GB of GPU memory"
    given = {
        name: value.to(wide) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }
    try:
        return measure(copy.deepcopy(untouched).to(wide), given)
    except (RuntimeError, TypeError, ValueError) as error:  # what cannot be copied or, quantized, has no other dtype
        return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def hidden_parameters(model: Module) -> Iterator[None]:
    """Make each parameter NaN except during its module's forward, as if FSDP2 or ZeRO-3 kept it elsewhere.

    A forward that reads ``lm_head.weight`` itself, without calling ``lm_head``, gets NaN.
    """
    real = {module: dict(module._parameters) for module in model.modules() if _has_parameters(module)}

    def show(module: Module, *_: Any) -> None:
        module._parameters.update(real[module])

    def hide(module: Module, *_: Any) -> None:
        for name, parameter in real[module].items():
            if parameter is not None and parameter.is_floating_point():
                nothing = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device)
                module._parameters[name] = torch.nn.Parameter(nothing.expand(parameter.shape), requires_grad=False)

    hooks = [module.register_forward_pre_hook(show, prepend=True) for module in real]
    hooks += [module.register_forward_hook(hide, always_call=True) for module in real]
    try:
        for module in real:
            hide(module)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in real:
            show(module)


def _has_parameters(module: Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _compared(name: str, value: Tensor, other: Tensor | None, noises: list[Tensor | None]) -> Comparison:
    resolution = max(torch.finfo(value.dtype).eps, _RESOLUTION) * _size(value)
    own = [_difference(value, noise) for noise in noises if noise is not None]
    return Comparison(name, _difference(value, other), max([resolution, *filter(math.isfinite, own)]))


def _difference(value: Tensor, other: Tensor | None) -> float:
    """The largest difference of two elements; NaN if a result is missing or has another shape."""
    if other is None or other.shape != value.shape:
        return math.nan
    difference = (value.double() - other.double()).abs()
    return float(difference.max()) if difference.numel() else 0.0


def _size(value: Tensor) -> float:
    return max(float(value.detach().abs().max()) if value.numel() else 0.0, _TINY)


def _call(model: Module, batch: Batch) -> Any:
    return model(**batch)


def _tensors(result: Any) -> Outputs:
    """The floating-point tensors of a result, by name."""
    if isinstance(result, Tensor):
        result = {"output": result}
    elif isinstance(result, (tuple, list)):
        result = {f"output {i}": value for i, value in enumerate(result)}
    if not isinstance(result, Mapping):
        return {}
    return {name: value for name, value in result.items() if isinstance(value, Tensor) and value.is_floating_point()}


def takes(model: Module, name: str) -> bool:
    """Whether the forward has an argument of this name."""
    return name in inspect.signature(type(model).forward).parameters


def _counts_items(model: Module) -> bool:
    """Whether this is a model of transformers that passes the keyword on to its loss."""
    return bool(getattr(model, "accepts_loss_kwargs", True)) and any(
        one.kind is one.VAR_KEYWORD for one in inspect.signature(type(model).forward).parameters.values()
    )


def _with_cache(model: Module, batch: Batch, result: Any) -> Outputs:
    """The logits of the last two tokens, computed from a cache of the tokens before them."""
    if not isinstance(result, Mapping) or "input_ids" not in batch or "decoder_input_ids" in batch:
        return {}
    key = next((key for key in _CACHES if result.get(key) is not None and takes(model, key)), None)
    if key is None or not ("logits" in result or "labels" in batch):
        return {}
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    if ids.shape[1] <= 2 or not (mask is None or (isinstance(mask, Tensor) and mask.dim() == 2)):
        return {}
    before = None if mask is None else mask[:, :-2]
    first = _call(model, {"input_ids": ids[:, :-2], "attention_mask": before, "use_cache": True})
    second = _call(model, {"input_ids": ids[:, -2:], "attention_mask": mask, key: first[key]})
    return {"logits, from a cache": second["logits"].clone()}


def _gradients(model: Module, batch: Batch) -> Outputs:
    """By parameter, of the loss, or of a fixed random sum of the outputs if there is no loss."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise RuntimeError("no parameter requires one")
    outputs = _tensors(_call(model, batch))
    if "loss" in outputs:
        objective = outputs["loss"]
    else:
        generator = torch.Generator("cpu").manual_seed(0)
        weights = [torch.randn(y.shape[1:], generator=generator).to(y) for y in outputs.values()]
        parts = [(y * w).sum() for y, w in zip(outputs.values(), weights, strict=True) if y.requires_grad]
        objective = torch.stack([part.float() for part in parts]).sum()
    found = torch.autograd.grad(objective, list(named.values()), allow_unused=True)
    by_name: dict[str, Tensor | None] = dict(zip(named, found, strict=True))
    return {name: value for name, value in by_name.items() if value is not None}


def _turned(value: Any) -> Any:
    return value.flip(0) if isinstance(value, Tensor) and value.dim() else value


def _turned_back(found: Measured, like: Measured) -> Measured:
    outputs = {name: _turned(value) for name, value in found.outputs.items() if name in like.outputs}
    return Measured(outputs, found.gradients, found.missing)


@contextlib.contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
        for unit in fsdp_units(model):  # the outermost keeps its parameters gathered until a backward
            unit.reshard()
