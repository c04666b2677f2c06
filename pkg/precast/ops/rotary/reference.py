"""The rotary ops in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_embedding(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    """``query`` and ``key`` with rotated pairs; a key that is None gives an empty tensor."""
    if positions is not None:
        # A position outside the tables gives NaN, as on a GPU: a transform cannot read its value.
        outside = ((positions < 0) | (positions >= cos.shape[0])).unsqueeze(-1)
        rows = positions.clamp(0, max(cos.shape[0] - 1, 0)).long()
        cos, sin = (table[rows].masked_fill(outside, torch.nan) for table in (cos, sin))
    # One row for all heads of a token.
    cos, sin = (_wide(table, query).unsqueeze(-2) for table in (cos, sin))
    if inverse:
        sin = -sin
    turned = _rotated(query, cos, sin, interleaved)
    return turned, query.new_empty(0) if key is None else _rotated(key, cos, sin, interleaved)


def rotary_embedding_(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    inverse: bool,
) -> None:
    """The same in place."""
    turned = rotary_embedding(query, key, cos, sin, positions, interleaved, inverse)
    query.copy_(turned[0])
    if key is not None:
        key.copy_(turned[1])


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    half = cos.shape[-1]
    wide, rest = _wide(x[..., : 2 * half], x), x[..., 2 * half :]
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else (wide[..., :half], wide[..., half:])
    turned = (first * cos - second * sin, second * cos + first * sin)
    pairs = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([pairs.to(x.dtype), rest], -1)


def _wide(t: Tensor, like: Tensor) -> Tensor:
    return t.double() if like.dtype == torch.float64 else t.float()
