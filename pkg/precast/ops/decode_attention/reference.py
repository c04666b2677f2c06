"""Attention over a paged cache in plain torch: gather all blocks of a table and mask keys that a query must not see."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._reference import without_autocast
from precast.ops.decode_attention import value_dims


@without_autocast
def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The result and the logarithms of the sums of exponentials, in float32, or in float64 for a float64 query."""
    wide = torch.promote_types(query.dtype, torch.float32)
    queries, heads = query.shape[1:3]
    known = (block_tables >= 0) & (block_tables < key_cache.shape[0])
    tables = torch.where(known, block_tables, 0).long()
    keys, values = _gathered(key_cache, value_cache, tables, wide)
    keys, values = _scaled(keys, key_scale), _scaled(values, value_scale)
    group = heads // keys.shape[2]
    by_head = query.to(wide).unflatten(2, (-1, group))
    scores = torch.einsum("sqhgd,skhd->sqhgk", by_head, keys).flatten(2, 3) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    room = keys.shape[1]
    at = torch.arange(room, device=query.device)
    last = lengths.long().clamp(0, room)
    position = (last[:, None] - queries + torch.arange(queries, device=query.device))[:, :, None]
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.to(wide)[:, None] * (at - position)[:, :, None]
    seen = (at <= position) & known.repeat_interleave(key_cache.shape[_position_dim(key_cache)], 1)[:, None]
    if window:
        seen = seen & (at > position - window)
    scores = torch.where(seen[:, :, None], scores, -torch.inf)
    if sinks is not None:
        sink = sinks.to(wide).expand(query.shape[0], queries, heads)[..., None]
        scores = torch.cat([scores, sink], -1)
    lse = torch.logsumexp(scores, -1)
    base = torch.where(lse == -torch.inf, 0, lse)[..., None]
    weights = torch.exp(scores - base)[..., :room].unflatten(2, (-1, group))
    seen_by_any = seen.any(1)[:, :, None, None]  # unseen values may be anything, even NaN
    result = torch.einsum("sqhgk,skhd->sqhgd", weights, torch.where(seen_by_any, values, 0)).flatten(2, 3)
    return result.to(query.dtype), lse.float()


def _position_dim(key_cache: Tensor) -> int:
    return 3 if key_cache.dim() == 5 else 1


def _gathered(key_cache: Tensor, value_cache: Tensor, tables: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values as ``(sequences, positions, kv_heads, width)``."""
    if key_cache.dim() == 5:
        keys = key_cache.to(wide)[tables].movedim(4, 2).flatten(4, 5)
        head, position, element = value_dims(key_cache, value_cache)
        values = value_cache.permute(0, position, head, element).to(wide)[tables]
        return keys.flatten(1, 2), values.flatten(1, 2)
    return key_cache.to(wide)[tables].flatten(1, 2), value_cache.to(wide)[tables].flatten(1, 2)


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale.to(x.dtype)[:, None]
