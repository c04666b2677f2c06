"""The ops of cross entropy in plain torch, differentiable to any order but for those in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precast.ops._reference import wide


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    factors: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor]:
    """The loss of each row times its scale, and the logarithm of each row's sum of exponentials."""
    x, columns = wide(logits), logits.shape[-1]
    lse = torch.logsumexp(x, -1)
    ignored, inside = target == ignore_index, (target >= 0) & (target < columns)
    at = torch.where(inside, target, 0).long()
    scale, weights, of_target = _numbers(lse, at, weight, factors, columns)
    logit = x.gather(-1, at.unsqueeze(-1)).squeeze(-1)
    loss = (1 - label_smoothing) * of_target * (lse - logit) + z_loss * lse.square()
    if label_smoothing:
        dot = (x if weight is None else x * weight).sum(-1)
        loss = loss + label_smoothing / columns * (weights * lse - dot)
    loss = loss * torch.where(inside | ignored, 1.0, torch.nan)  # the gradient of a row without a class is NaN too
    return scale * torch.where(ignored, 0.0, loss), lse


def cross_entropy_with_grad(
    logits: Tensor, target: Tensor, weight: Tensor | None, factors: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, with the gradient of the sum of the losses for the logits."""
    columns, (ignore_index, label_smoothing, z_loss) = logits.shape[-1], options
    losses, lse = cross_entropy(logits, target, weight, factors, *options)
    ignored, inside = target == ignore_index, (target >= 0) & (target < columns)
    scale, weights, of_target = _numbers(lse, torch.where(inside, target, 0).long(), weight, factors, columns)
    kept, of_each = (1 - label_smoothing) * of_target, label_smoothing / columns
    share = scale * (kept + of_each * weights + 2 * z_loss * lse)
    given = torch.stack(torch.broadcast_tensors(lse, share, scale * of_each, scale * kept))
    grad = _gradient(logits, target, given.flatten(1), weight)
    grad = torch.where((inside | ignored).unsqueeze(-1), grad, torch.nan)
    return losses, lse, torch.where(ignored.unsqueeze(-1), 0.0, grad).to(logits.dtype)


def cross_entropy_with_grad_(logits: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """The same, with the gradient written over the logits."""
    losses, lse, grad = cross_entropy_with_grad(logits, *others)
    logits.copy_(grad)
    return losses, lse


def cross_entropy_backward(logits: Tensor, target: Tensor, given: Tensor, weight: Tensor | None) -> Tensor:
    """A gradient from numbers of each row: ``lse``, and what multiplies exponentials, weights and the target."""
    return _gradient(logits, target, given, weight).to(logits.dtype)


def cross_entropy_scale_(grad: Tensor, factor: Tensor) -> None:
    """Each row times its factor."""
    grad.copy_(wide(grad) * (factor if factor.numel() == 1 else factor.reshape(*grad.shape[:-1], 1)))


def _numbers(
    like: Tensor, at: Tensor, weight: Tensor | None, factors: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The scale of all rows or of each, the sum of the weights, and the weight of each target."""
    one = torch.ones((), dtype=like.dtype, device=like.device)
    scales, sums = one, one * columns
    if factors is not None:
        numbers = factors.to(like.dtype)
        scales = numbers if weight is None else numbers[:-1]
        scales = scales[0] if scales.shape[0] == 1 else scales.reshape(like.shape)
        sums = sums if weight is None else numbers[-1]
    return scales, sums, one if weight is None else weight.to(like.dtype)[at]


def _gradient(logits: Tensor, target: Tensor, given: Tensor, weight: Tensor | None) -> Tensor:
    x, columns = wide(logits), logits.shape[-1]
    lse, share, spread, pull = (row.reshape(*target.shape, 1) for row in given.to(x.dtype).unbind())
    chosen = target.unsqueeze(-1) == torch.arange(columns, device=x.device)
    weights = 1.0 if weight is None else weight.to(x.dtype)
    return share * torch.exp(x - lse) - spread * weights - pull * chosen
