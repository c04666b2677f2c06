"""The ops for a mixture of experts, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._reference import wide

_TINY = 1e-20  # added to a sum of sigmoids, as DeepSeek-V3 does


def topk_gating(
    logits: Tensor,
    bias: Tensor | None,
    k: int,
    groups: int,
    kept_groups: int,
    top_two: bool,
    sigmoid: bool,
    renormalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The weights and the ids of the best experts.

    Experts are chosen by their logits, or by their scores if there is a bias or if there are groups.
    """
    x = wide(logits)
    choice = x.detach()
    if bias is not None or groups > 1:
        choice = choice.sigmoid() if sigmoid else choice.softmax(-1)
        choice = choice if bias is None else choice + bias.detach()
    if groups > 1:
        grouped = choice.unflatten(-1, (groups, -1))
        best = grouped.sort(dim=-1, descending=True, stable=True)[0]
        score = best[..., :2].sum(-1) if top_two else best[..., 0]
        out = score.sort(dim=-1, descending=True, stable=True)[1][..., kept_groups:]
        left_out = torch.zeros_like(score, dtype=torch.bool).scatter(-1, out, True)
        # Experts of other groups come after all others, even after those with a score of -inf.
        order = grouped.masked_fill(left_out.unsqueeze(-1), -torch.inf).flatten(-2)
        first = order.sort(dim=-1, descending=True, stable=True)[1]
        outside = left_out.unsqueeze(-1).expand(grouped.shape).flatten(-2).gather(-1, first)
        ids = first.gather(-1, outside.to(torch.uint8).sort(dim=-1, stable=True)[1])[..., :k]
    else:
        ids = choice.sort(dim=-1, descending=True, stable=True)[1][..., :k]
    picked = x.gather(-1, ids)
    if sigmoid:
        weights = picked.sigmoid()
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY) if renormalize else weights
    else:
        weights = picked.softmax(-1) if renormalize else x.softmax(-1).gather(-1, ids)
    return weights * scale, ids.int()


def topk_gating_backward(
    grad: Tensor, logits: Tensor, topk_ids: Tensor, sigmoid: bool, renormalize: bool, scale: float
) -> Tensor:
    """The gradient for ``logits``, from the chosen experts."""
    x, ids = wide(logits), topk_ids.long()
    picked, base = x.gather(-1, ids), torch.zeros_like(x)
    if sigmoid:
        share = picked.sigmoid()
        total = share.sum(-1, keepdim=True) + _TINY
        slope = (grad - (grad * share).sum(-1, keepdim=True) / total) / total if renormalize else grad
        slope = slope * share * (1 - share)
    elif renormalize:
        share = picked.softmax(-1)
        slope = share * (grad - (grad * share).sum(-1, keepdim=True))
    else:
        shares = x.softmax(-1)
        share = shares.gather(-1, ids)
        dot = (grad * share).sum(-1, keepdim=True)
        base, slope = -shares * dot, share * (grad - dot)
    return (base.scatter(-1, ids, slope) * scale).to(logits.dtype)


def _buckets(topk_ids: Tensor, experts: int) -> Tensor:
    """The expert of each pair; ``experts`` for a pair that is left out."""
    ids = topk_ids.flatten().long()
    return torch.where((ids < 0) | (ids >= experts), experts, ids)


def _ends(sorted_buckets: Tensor, experts: int) -> Tensor:
    """Where the pairs of each expert end."""
    numbers = torch.arange(experts, device=sorted_buckets.device)
    return torch.searchsorted(sorted_buckets, numbers, right=True)


def moe_positions(topk_ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """The slot of each pair, and where the slots of each expert end."""
    buckets = _buckets(topk_ids, experts)
    ordered, order = buckets.sort(stable=True)
    slots = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    positions = torch.where(buckets == experts, ~slots, slots)
    return positions.view(topk_ids.shape).int(), _ends(ordered, experts).int()


def moe_align_block_size(topk_ids: Tensor, experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pair of each slot, the expert of each block, and the number of slots in use."""
    pairs = topk_ids.numel()
    slots = pairs + min(pairs, experts) * (block_size - 1)
    buckets = _buckets(topk_ids, experts)
    ordered, order = buckets.sort(stable=True)
    ends = _ends(ordered, experts)
    counts = ends.diff(prepend=ends.new_zeros(1))
    blocks = (counts + block_size - 1) // block_size * block_size
    padded = blocks.cumsum(0)
    moved = torch.cat((padded - blocks - (ends - counts), ends.new_zeros(1)))  # by the blocks filled up before
    places = torch.arange(pairs, device=topk_ids.device) + moved[ordered]
    places = torch.where(ordered == experts, slots, places)  # a slot that is dropped
    sorted_ids = torch.full((slots + 1,), pairs, device=topk_ids.device).scatter(0, places, order)[:slots]
    starts = torch.arange((slots + block_size - 1) // block_size, device=topk_ids.device) * block_size
    expert_ids = torch.where(starts < padded[-1], torch.searchsorted(padded, starts, right=True), 0)
    return sorted_ids.int(), expert_ids.int(), padded[-1:].int()


def _slots_or(positions: Tensor, slots: int) -> Tensor:
    """Positions as indices; ``slots``, one too many, where there is no row."""
    return torch.where((positions < 0) | (positions >= slots), slots, positions).long().flatten()


def moe_permute_rows(rows: Tensor, positions: Tensor, slots: int, whole: bool) -> Tensor:
    """The row of each token at all of its positions, and zero elsewhere; rows at one position are added up."""
    spread = wide(rows).repeat_interleave(positions.shape[1], 0)
    zeros = spread.new_zeros(slots + 1, rows.shape[1])
    return zeros.index_add(0, _slots_or(positions, slots), spread)[:slots].to(rows.dtype)


def moe_permute_few(rows: Tensor, topk_ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows sorted by expert, the slot of each pair, and where the slots of each expert end."""
    positions, ends = moe_positions(topk_ids, experts)
    return moe_permute_rows(rows, positions, topk_ids.numel(), True), positions, ends


def moe_combine_rows(rows: Tensor, positions: Tensor, weights: Tensor | None, whole: bool) -> Tensor:
    """The weighted sum of the rows of each token."""
    taken = _taken(rows, positions)
    taken = taken if weights is None else taken * weights.unsqueeze(-1)
    return taken.sum(1).to(rows.dtype)


def moe_combine_rows_backward(
    grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, whole: bool
) -> tuple[Tensor, Tensor]:
    """The gradients for the rows and the weights."""
    slots = rows.shape[0]
    slopes = wide(grad).unsqueeze(1)
    grad_weights = (slopes * _taken(rows, positions)).sum(-1)
    spread = (slopes * weights.unsqueeze(-1)).flatten(0, 1)
    zeros = spread.new_zeros(slots + 1, rows.shape[1])
    grad_rows = zeros.index_add(0, _slots_or(positions, slots), spread)[:slots]
    return grad_rows.to(rows.dtype), grad_weights.to(weights.dtype)


def _taken(rows: Tensor, positions: Tensor) -> Tensor:
    """``(tokens, k, width)``: the row at each position; zero where there is none."""
    padded = torch.cat((wide(rows), wide(rows).new_zeros(1, rows.shape[1])))
    taken: Tensor = padded[_slots_or(positions, rows.shape[0])].unflatten(0, positions.shape)
    return taken
