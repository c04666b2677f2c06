"""The loss of a causal language model of transformers: ``model.loss_function``, which each instance may replace.

The own loss copies all logits to float32 first. The kernel reads them as they are, computes in float32 too, and rounds
the gradient once, as the copy's backward does. Every keyword is obeyed or ignored as the own loss does it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import flow, forwards, instances
from precast._adopt.probe import Trial, decide, drawn, probe
from precast._adopt.seen import seen_forward
from precast._adopt.source import Sources, Unreadable, fingerprint_of_functions

_KNOWN = {"9a4ac64c07d3021a"}  # transformers ForCausalLMLoss with fixed_cross_entropy
_CLASSES, _ROWS = 16384, 32
# num_items_in_batch and loss scale: of a plain call, and of a trainer with a GradScaler. If a float16 gradient is
# rounded before it is scaled, it is lost.
_CALLS = ((None, 1.0), (50000, 65536.0))


Options = tuple[tuple[str, ...], tuple[str, ...]]  # of a config, which must be None, and scales


def bound(model: Any, device: str) -> tuple[functools.partial[Any] | None, str, str]:
    """The replacement or None, the fingerprint of the own loss, and a line for the report."""
    if instances.LOSS in model.__dict__:
        mine = instances.is_ours(model.__dict__[instances.LOSS])
        return None, "", "it is adopted already" if mine else "its loss was replaced before"
    own = model.loss_function
    try:
        digest = fingerprint_of(own)
    except Unreadable as error:
        return None, "", f"its loss: {error}"
    if digest not in _KNOWN:
        return None, digest, "no rule knows what its loss does"
    found, reason = decide(probe(functools.partial(_trial, own, device), device), device)
    if found is None:
        return None, digest, f"its loss: {reason}"
    return functools.partial(forwards.causal_loss, own, device, None), digest, f"{found} and its gradient: {reason}"


def fingerprint_of(own: Any) -> str:
    """Of a loss, with the function of its module that does the arithmetic; of a model, its forward's, undecorated."""
    if hasattr(own, "forward"):
        return fingerprint_of_functions(inspect.unwrap(own.forward))
    return fingerprint_of_functions(own, getattr(sys.modules[own.__module__], "fixed_cross_entropy", own))


def with_signature(
    function: Callable[..., Any], module: Module, device: str, options: Options
) -> functools.partial[Any]:
    """A forward with the arguments of the module's own one, which trainers and ``generate`` look for."""
    bound = functools.partial(function, module, device, options, _proof=seen_forward(module))
    _, *arguments = inspect.signature(type(module).forward).parameters.values()
    bound.__signature__ = inspect.Signature([one.replace(annotation=one.empty) for one in arguments])  # type: ignore[attr-defined]
    return bound


def without_logits(model: Any) -> tuple[str, Options]:
    """Why the loss must be computed from logits, or nothing; and what must stay so."""
    options, scales = flow.logits_of(inspect.unwrap(type(model).forward))
    return _unfit(model) or forwards.changed_logits(model, options, scales), (options, scales)


def _unfit(model: Any) -> str:
    head = model._modules.get("lm_head")
    if "forward" in model.__dict__:
        return "its forward was replaced before"
    if type(head) is not torch.nn.Linear:
        kind = f"{type(head).__module__}.{type(head).__qualname__}"
        return f"its lm_head is a {kind}; needed a torch.nn.Linear, without adapter or sharding of its own"
    if "forward" in head.__dict__:
        return "the forward of its lm_head was replaced before"
    if instances.has_hooks(head):
        return "its lm_head has hooks, which would see no logits"
    if type(head.weight) is not torch.nn.Parameter:
        return f"the weight of its lm_head is a {type(head.weight).__name__} (FSDP2 or tensor parallelism)"
    if hasattr(head.weight, "ds_id"):
        return "its lm_head is partitioned by ZeRO-3 of DeepSpeed"
    text = model.config if hasattr(model.config, "vocab_size") else model.config.get_text_config()
    if head.out_features != text.vocab_size:
        return f"its lm_head has {head.out_features} classes, and vocab_size is {text.vocab_size}"
    return ""


def sources(own: Any) -> Sources:
    """What is read beside a loss: the entries of a table under which models find it."""
    table = getattr(sys.modules[own.__module__], "LOSS_MAPPING", {})
    names = [name for name, one in table.items() if one is own]
    return tuple((f"{own.__module__}.LOSS_MAPPING.{name}", fingerprint_of_functions(own)) for name in names)


class _Gradient(Module):
    """Its forward is the gradient of a loss for the logits, which is where a loss rounds."""

    def __init__(self, loss: Any, labels: Tensor) -> None:
        super().__init__()
        self.loss, self.labels = loss, labels

    def forward(self, logits: Tensor) -> Tensor:
        """The gradients of all calls, in the dtype of the logits."""
        options = {"labels": None, "vocab_size": _CLASSES, "shift_labels": self.labels}
        found = []
        with torch.enable_grad():
            for items, scale in _CALLS:
                given = logits.detach().requires_grad_()
                loss = self.loss(logits=given, num_items_in_batch=items, **options) * scale
                found.append(torch.autograd.grad(loss, given)[0])
        return torch.cat(found)


def _trial(own: Any, device: str, dtype: torch.dtype, generator: torch.Generator) -> Trial:
    logits = drawn((_ROWS, _CLASSES), dtype, device, generator) * 3
    labels = torch.randint(0, _CLASSES, (_ROWS,), generator=generator, device="cpu").to(device)
    labels[::8] = -100
    counted = (labels != -100).unsqueeze(-1)
    logarithms = torch.log_softmax(logits.double(), -1)
    share = logarithms.exp() * counted
    hit = torch.nn.functional.one_hot(labels.clamp(min=0), _CLASSES) * counted
    factors = [scale / float(counted.sum() if items is None else items) for items, scale in _CALLS]
    size = share * (1 - logarithms) + hit  # an exponential's error is as large as the rounding of its exponent
    exact, size = (torch.cat([part * factor for factor in factors]) for part in (share - hit, size))
    ours = _Gradient(functools.partial(forwards.causal_loss, own, device, None), labels)
    return Trial(
        _Gradient(own, labels),
        logits,
        {"cross_entropy": ours(logits)},
        lambda error: {"cross_entropy": exact + size * (error - 1)},
    )
