"""What a model computes for a sample batch, in several ways, and what it raises instead."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt.recognise import fsdp_units, is_sharded
from precast._adopt.state import State, attempted

Batch = Mapping[Any, Any]  # by name, or by position
Outputs = dict[str, Tensor]
# The names under which transformers returns and takes its cache of keys and values.
_CACHES = ("cache", "past_key_values")  # the second before transformers 5.24
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_ITEMS = 7  # any number that is not the count of the sample's labels
_HIDDEN = "outputs with hidden parameters"


@dataclass(frozen=True)
class Measured:
    """The outputs of a model by name, its gradients by parameter, and why others could not be had."""

    outputs: Outputs
    gradients: Outputs
    failed: Mapping[str, str]

    @property
    def missing(self) -> tuple[str, ...]:
        """Lines for the report."""
        return tuple(f"{what}: {why}" for what, why in self.failed.items())


class _Absent(Exception):
    """There is no such result; the text says why."""


def measure(model: Module, batch: Batch, state: State, *, noise: bool = False) -> Measured:
    """Run the model in evaluation mode on the batch, each time from the same state, which is put back.

    The noise of outputs with hidden parameters is that of the same outputs, so it is not measured twice.
    """
    failed: dict[str, str] = {}

    def run(what: str, function: Callable[[Module, Batch], Outputs]) -> Outputs:
        found, failed[what] = _attempted(model, state, lambda: function(model, batch))
        if not failed[what]:
            del failed[what]
        return found

    outputs = run("outputs", _plain)
    if not failed:
        if _has_cache(model, batch):
            outputs |= run("outputs from a cache", _with_cache)
        if "loss" in outputs and _counts_items(model):
            outputs |= run("the loss with num_items_in_batch", _with_items)
        if is_sharded(model, recurse=True):
            return Measured(outputs, {}, failed | {f"gradients, and {_HIDDEN}": "the model is sharded"})
        visible = dict(outputs)
        outputs |= _as_hidden(visible) if noise else run(_HIDDEN, lambda model, batch: _hidden(model, batch, visible))
        return Measured(outputs, run("gradients", _gradients), failed)
    return Measured({}, {}, failed)


def without_logits(found: Measured) -> Measured:
    """The same without the logits of the calls with labels."""
    with_labels = ("logits", "logits, parameters hidden")
    outputs = {name: value for name, value in found.outputs.items() if name not in with_labels}
    return Measured(outputs, found.gradients, found.failed)


def _attempted(model: Module, state: State, function: Callable[[], Outputs]) -> tuple[Outputs, str]:
    """The results, or why there are none. Some ops cannot be watched: then the call is made once more."""
    reason = ""
    for watch in (True, False) if state.watches else (False,):
        found, again = attempted(functools.partial(_run, model, state, watch, function))
        if found is not None:
            state.watches = watch
            return found, ""
        reason = reason or again
    return {}, reason.removeprefix("_Absent: ")


def _run(model: Module, state: State, watch: bool, function: Callable[[], Outputs]) -> Outputs:
    with state.of_one_call(watch=watch), _evaluating(model), _uncompiled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: value.detach().clone() for name, value in function().items()}


@torch.no_grad()
def _plain(model: Module, batch: Batch) -> Outputs:
    return _tensors(_call(model, batch))


@torch.no_grad()
def _with_items(model: Module, batch: Batch) -> Outputs:
    counted = _call(model, {**batch, "num_items_in_batch": _ITEMS})
    return {"loss, num_items_in_batch": _tensors(counted)["loss"]}


@torch.no_grad()
def _hidden(model: Module, batch: Batch, visible: Outputs) -> Outputs:
    with hidden_parameters(model):
        hidden = _tensors(_call(model, batch))
    if any(value.isnan().any() and not visible[name].isnan().any() for name, value in hidden.items()):
        raise _Absent("the model reads parameters outside their module's forward")
    return _as_hidden(hidden)


def _as_hidden(outputs: Outputs) -> Outputs:
    return {f"{name}, parameters hidden": value for name, value in outputs.items()}


@torch.no_grad()
def _with_cache(model: Module, batch: Batch) -> Outputs:
    """The logits of the last two tokens, computed from a cache of the tokens before them."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    before = None if mask is None else mask[:, :-2]
    first = _call(model, {"input_ids": ids[:, :-2], "attention_mask": before, "use_cache": True})
    given = {key: first[key] for key in _CACHES if key in list(first) and takes(model, key)}
    if not given or "logits" not in list(first):
        raise _Absent("the model returns no cache")
    second = _call(model, {"input_ids": ids[:, -2:], "attention_mask": mask, **given})
    return {"logits, from a cache": second["logits"]}


def _has_cache(model: Module, batch: Batch) -> bool:
    if "input_ids" not in batch or not takes(model, "use_cache") or not any(takes(model, key) for key in _CACHES):
        return False
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    fits = mask is None or (isinstance(mask, Tensor) and mask.dim() == 2)
    return fits and ids.dim() == 2 and ids.shape[1] > 2 and "decoder_input_ids" not in batch


@torch.enable_grad()
def _gradients(model: Module, batch: Batch) -> Outputs:
    """By parameter, of the loss, or of a fixed random sum of the outputs if there is no loss."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise _Absent("no parameter requires a gradient")
    outputs = _tensors(_call(model, batch))
    if "loss" in outputs:
        objective = outputs["loss"]
    else:
        generator = torch.Generator("cpu").manual_seed(0)
        weights = [torch.randn(y.shape[1:], generator=generator, device="cpu").to(y) for y in outputs.values()]
        parts = [(y * w).sum() for y, w in zip(outputs.values(), weights, strict=True) if y.requires_grad]
        if not parts:
            raise _Absent("no output requires a gradient")
        objective = torch.stack([part.float() for part in parts]).sum()
    # Keep the graph: it may be part of a graph that the user still needs.
    found = torch.autograd.grad(objective, list(named.values()), retain_graph=True, allow_unused=True)
    by_name: dict[str, Tensor | None] = dict(zip(named, found, strict=True))
    return {name: value for name, value in by_name.items() if value is not None}


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
    scripted = isinstance(module, torch.jit.ScriptModule)  # its parameters are not Python's
    return not scripted and next(module.parameters(recurse=False), None) is not None


def _call(model: Module, batch: Batch) -> Any:
    return model(
        *(value for key, value in batch.items() if isinstance(key, int)),
        **{key: value for key, value in batch.items() if not isinstance(key, int)},
    )


def _tensors(result: Any) -> Outputs:
    """The floating-point tensors of a result, by name; of its parts if it has none of its own."""
    named = _named(result)
    found = {name: one for name, one in named.items() if isinstance(one, Tensor) and is_comparable(one)}
    if not found:
        for name, part in named.items():
            if isinstance(part, (Mapping, list, tuple)):
                found |= {f"{name}: {inner}": one for inner, one in _tensors(part).items()}
    return found


def is_comparable(tensor: Tensor) -> bool:
    """Whether its elements are numbers in memory, of a dtype that has arithmetic."""
    return tensor.dtype in _DTYPES and is_dense(tensor)


def is_dense(tensor: Tensor) -> bool:
    """Whether it is neither sparse nor nested nor without memory."""
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.device.type != "meta"


def _named(result: Any) -> Mapping[Any, Any]:
    if isinstance(result, (tuple, list)):
        return {f"output {i}": value for i, value in enumerate(result)}
    return result if isinstance(result, Mapping) else {"output": result}


def takes(model: Module, name: str) -> bool:
    """Whether the forward has an argument of this name."""
    return name in _arguments(model)


def _arguments(model: Module) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(type(model).forward).parameters
    except (TypeError, ValueError, AttributeError):  # it has none that Python can read
        return {}


def _counts_items(model: Module) -> bool:
    """Whether this is a model of transformers that passes the keyword on to its loss."""
    named = any(one.kind is one.VAR_KEYWORD for one in _arguments(model).values())
    return named and bool(getattr(model, "accepts_loss_kwargs", True))


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Call the forwards that ``torch.compile`` has wrapped: a graph has none of ours, and each way makes another."""
    stance = getattr(torch.compiler, "set_stance", None) if "torch._dynamo" in sys.modules else None
    return contextlib.nullcontext() if stance is None else stance("force_eager")


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
