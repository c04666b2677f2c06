"""The rotary ops in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from precast.ops.norm.reference import rms_norm


def rms_norm_rotary_embedding(
    query: Tensor,
    key: Tensor | None,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    eps: float,
    casting: int,
    interleaved: bool,
    each_product: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    """The norm of each head, if there are weights, and its rotation; a key that is None gives an empty tensor."""
    if query_weight is not None:
        query = rms_norm(query, query_weight, eps, casting)
    if key is not None and key_weight is not None:
        key = rms_norm(key, key_weight, eps, casting)
    return _turned(query, key, cos, sin, positions, interleaved, inverse, each_product)


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
    return _turned(query, key, cos, sin, positions, interleaved, inverse, each_product=False)


def _turned(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    inverse: bool,
    each_product: bool,
) -> tuple[Tensor, Tensor]:
    if positions is not None:
        # A position outside the tables gives NaN, as on a GPU: a transform cannot read its value.
        outside = ((positions < 0) | (positions >= cos.shape[0])).unsqueeze(-1)
        rows = positions.clamp(0, max(cos.shape[0] - 1, 0)).long()
        cos, sin = (table[rows].masked_fill(outside, torch.nan) for table in (cos, sin))
    # One row for all heads of a token.
    cos, sin = (_wide(table, query).unsqueeze(-2) for table in (cos, sin))
    # For the first and the second elements of pairs: whole tables have numbers for both.
    whole = cos.shape[-1] > query.shape[-1] // 2
    cosines, sines = (table.chunk(2, -1) if whole else (table, table) for table in (cos, sin))
    if inverse:
        sines = (-sines[1], -sines[0])
    turned = _rotated(query, cosines, sines, interleaved, each_product)
    return turned, query.new_empty(0) if key is None else _rotated(key, cosines, sines, interleaved, each_product)


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


def _rotated(x: Tensor, cos: Sequence[Tensor], sin: Sequence[Tensor], interleaved: bool, each_product: bool) -> Tensor:
    half = cos[0].shape[-1]
    wide, rest = _wide(x[..., : 2 * half], x), x[..., 2 * half :]
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else (wide[..., :half], wide[..., half:])

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).to(x.dtype).to(wide.dtype) if each_product else a * b

    turned = (
        product(first, cos[0]) - product(second, sin[0]),
        product(second, cos[1]) + product(first, sin[1]),
    )
    pairs = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([pairs.to(x.dtype), rest], -1)


def _wide(t: Tensor, like: Tensor) -> Tensor:
    return t.double() if like.dtype == torch.float64 else t.float()
