"""Cross entropy of logits whose classes are split over the ranks of a process group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precast.ops import _checks
from precast.ops._written import check_readable
from precast.ops.losses._ops import (
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    check_smoothing,
    class_weights,
    reduced,
    refuse_second_derivative,
)


def over_shards(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    reduction: str,
    num_items: int | Tensor | None,
    group: Any,
) -> Tensor:
    """The loss of all classes, the same on each rank. Two collectives of a few numbers per row."""
    if not isinstance(group, torch.distributed.ProcessGroup):
        raise TypeError(f"cross_entropy: group is a {type(group).__name__}; needed a torch.distributed.ProcessGroup")
    check_smoothing("cross_entropy", label_smoothing)
    check_readable("cross_entropy", logits=logits, target=target)
    size = torch.distributed.get_world_size(group)
    shard = logits.shape[-1]
    start, classes = torch.distributed.get_rank(group) * shard, size * shard
    weight = class_weights("cross_entropy", weight, logits, logits.shape[-1:], "logits")
    counted = target != ignore_index
    inside = counted & (target >= 0) & (target < classes)
    if not target.is_cuda:
        _checks.require(
            bool((inside | ~counted).all()),
            lambda: f"cross_entropy: a target is no class; needed 0 to {classes - 1}, or ignore_index {ignore_index}",
        )
    mine = inside & (target >= start) & (target < start + shard)
    at = torch.where(mine, target - start, -1)
    with torch.no_grad():
        given, losses = _numbers(
            logits, at, weight, (counted, inside), classes, (label_smoothing, z_loss, reduction, num_items), group
        )
    found: Tensor = _Shard.apply(logits, at, weight, given, losses)  # type: ignore[no-untyped-call]
    return reduced(found, target, reduction, num_items)


def _numbers(
    logits: Tensor,
    at: Tensor,
    weight: Tensor | None,
    rows: tuple[Tensor, Tensor],
    classes: int,
    options: tuple[float, float, str, int | Tensor | None],
    group: Any,
) -> tuple[Tensor, Tensor]:
    """What this shard's gradient follows from, and the losses."""
    (counted, inside), (smoothing, z_loss, reduction, num_items) = rows, options
    lse = CROSS_ENTROPY(logits, at, None, None, -1, 0.0, 0.0)[1]
    top = lse.clone()
    torch.distributed.all_reduce(top, torch.distributed.ReduceOp.MAX, group=group)
    top = torch.where(top.isinf(), 0.0, top)
    mine, index = at >= 0, at.clamp(min=0).long()
    logit = torch.where(mine, logits.gather(-1, index.unsqueeze(-1)).squeeze(-1).float(), 0.0)
    own = mine.float() if weight is None else torch.where(mine, weight[index], 0.0)
    weights = lse.new_full((), logits.shape[-1]) if weight is None else weight.sum()
    sums = torch.stack([torch.exp(lse - top), logit, own, weights.expand_as(lse), torch.zeros_like(lse)])
    if smoothing:
        sums[4] = (logits.float() if weight is None else logits.float() * weight).sum(-1)
    torch.distributed.all_reduce(sums, group=group)
    lse, logit, own, weights, dot = top + sums[0].log(), *sums[1:]
    scale = torch.ones((), device=lse.device)
    if reduction == "mean":
        scale = torch.as_tensor(own.sum() if num_items is None else num_items, device=lse.device).float().reciprocal()
    kept, of_each = (1 - smoothing) * own, smoothing / classes
    losses = kept * (lse - logit) + of_each * (weights * lse - dot) + z_loss * lse.square()
    share = kept + of_each * weights + 2 * z_loss * lse
    given = torch.stack(torch.broadcast_tensors(lse, scale * share, scale * of_each, scale * kept))
    given[1:] = torch.where(inside, given[1:], torch.where(counted, torch.nan, 0.0))
    return given.flatten(1), scale * torch.where(inside, losses, torch.where(counted, torch.nan, 0.0))


class _Shard(torch.autograd.Function):
    """The losses as they are; their gradient for this rank's logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, at: Tensor, weight: Tensor | None, given: Tensor, losses: Tensor) -> Tensor:
        ctx.save_for_backward(logits, at, weight, given)
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative("cross_entropy")
        logits, at, weight, given = ctx.saved_tensors
        given = torch.cat([given[:1], given[1:] * slope.reshape(-1)])
        return CROSS_ENTROPY_BACKWARD(logits, at, given, weight), None, None, None, None
