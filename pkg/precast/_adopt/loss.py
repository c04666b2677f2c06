"""The loss of a causal language model of transformers: ``model.loss_function``, which each instance may replace.

The own loss copies all logits to float32 first. The kernel reads them as they are, computes in float32 too, and rounds
the gradient once, as the copy's backward does. Every keyword is obeyed or ignored as the own loss does it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import forwards
from precast._adopt.probe import Trial, decide
from precast._adopt.source import Unreadable, fingerprint_of_functions

_KNOWN = {"9a4ac64c07d3021a"}  # transformers ForCausalLMLoss with fixed_cross_entropy
_CLASSES, _ROWS = 128, 256


def bound(model: Any, device: str) -> tuple[functools.partial[Any] | None, str, str]:
    """The replacement or None, the fingerprint of the own loss, and a line for the report."""
    if forwards.LOSS in model.__dict__:
        mine = forwards.is_ours(model.__dict__[forwards.LOSS])
        return None, "", "it is adopted already" if mine else "its loss was replaced before"
    own = model.loss_function
    try:
        digest = fingerprint_of(own)
    except Unreadable as error:
        return None, "", f"its loss: {error}"
    if digest not in _KNOWN:
        return None, digest, "no rule knows what its loss does"
    found, reason = decide(functools.partial(_trial, own, device), device)
    if found is None:
        return None, digest, f"its loss: {reason}"
    return functools.partial(forwards.causal_loss, own, device), digest, f"{found} and its gradient: {reason}"


def fingerprint_of(own: Any) -> str:
    """Of a loss, with the function of its module that does the arithmetic."""
    return fingerprint_of_functions(own, getattr(sys.modules[own.__module__], "fixed_cross_entropy", own))


class _Gradient(Module):
    """Its forward is the gradient of a loss for the logits, which is where a loss rounds."""

    def __init__(self, loss: Any, labels: Tensor) -> None:
        super().__init__()
        self.loss, self.labels = loss, labels

    def forward(self, logits: Tensor) -> Tensor:
        """The gradient, in the dtype of the logits."""
        with torch.enable_grad():
            given = logits.detach().requires_grad_()
            loss = self.loss(logits=given, labels=None, vocab_size=_CLASSES, shift_labels=self.labels)
            return torch.autograd.grad(loss, given)[0]


def _trial(own: Any, device: str, dtype: torch.dtype, generator: torch.Generator) -> Trial:
    logits = (torch.randn((_ROWS, _CLASSES), generator=generator) * 3).to(device, dtype)
    labels = torch.randint(0, _CLASSES, (_ROWS,), generator=generator).to(device)
    labels[::8] = -100
    counted = (labels != -100).unsqueeze(-1)
    share = torch.softmax(logits.double(), -1) * counted
    hit = torch.nn.functional.one_hot(labels.clamp(min=0), _CLASSES) * counted
    exact, size = (share - hit) / counted.sum(), (share + hit) / counted.sum()
    ours = _Gradient(functools.partial(forwards.causal_loss, own, device), labels)
    return Trial(
        _Gradient(own, labels),
        logits,
        {"cross_entropy": ours(logits)},
        lambda error: {"cross_entropy": exact + size * (error - 1)},
    )
