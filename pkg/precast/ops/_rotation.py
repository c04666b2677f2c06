"""The rotary ops' checks that need only metadata, with the kernels' error messages (csrc/rotary/rotate.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._checks import FLOAT_TYPES, dtype_name, require, same_device, same_kind, same_shape


def inputs(
    op: str,
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    inverse: bool,
) -> None:
    """Raise unless ``query``, ``key``, the tables and the positions are for the same tokens."""
    require(
        query.dtype in FLOAT_TYPES, lambda: f"{op}: query is {dtype_name(query)}; needed float32, float16 or bfloat16"
    )
    require(
        query.dim() >= 3, lambda: f"{op}: query has shape {tuple(query.shape)}; needed (..., tokens, heads, head_dim)"
    )
    if key is not None:
        _key(op, key, query)
    _tables(op, cos, sin, query)
    tokens = query.shape[-3]
    if positions is None:
        require(
            cos.shape[0] == tokens,
            lambda: (
                f"{op}: cos has shape {tuple(cos.shape)} and query has {tuple(query.shape)}; needed one row for each "
                f"of {tokens} tokens, or positions"
            ),
        )
        return
    require(
        positions.dtype in (torch.int32, torch.int64),
        lambda: f"{op}: positions is {dtype_name(positions)}; needed int32 or int64",
    )
    same_device(op, "positions", positions, query, "query")
    require(
        positions.dim() == 1 and positions.shape[0] == tokens,
        lambda: (
            f"{op}: positions has shape {tuple(positions.shape)} and query has {tuple(query.shape)}; needed "
            f"({tokens},), one for each token"
        ),
    )
    require(
        cos.shape[0] > 0 or tokens == 0,
        lambda: f"{op}: cos has shape {tuple(cos.shape)}; needed a row for each position",
    )


def _key(op: str, key: Tensor, query: Tensor) -> None:
    same_kind(op, "key", key, query, "query")
    require(
        key.dim() == query.dim() and key.shape[:-2] == query.shape[:-2] and key.shape[-1] == query.shape[-1],
        lambda: (
            f"{op}: key has shape {tuple(key.shape)} and query has {tuple(query.shape)}; needed the same but for the "
            "number of heads"
        ),
    )


def _tables(op: str, cos: Tensor, sin: Tensor, query: Tensor) -> None:
    require(
        cos.dtype in (torch.float32, query.dtype),
        lambda: f"{op}: cos is {dtype_name(cos)} and query is {dtype_name(query)}; needed float32, or that dtype",
    )
    same_device(op, "cos", cos, query, "query")
    same_kind(op, "sin", sin, cos, "cos")
    require(
        cos.dim() == 2,
        lambda: f"{op}: cos has shape {tuple(cos.shape)}; needed (tokens or positions, rotary_dim / 2)",
    )
    same_shape(op, "sin", sin, "cos", cos)
    most = query.shape[-1] // 2
    require(
        cos.shape[1] <= most,
        lambda: (
            f"{op}: cos has shape {tuple(cos.shape)} and query has {tuple(query.shape)}; needed at most {most} "
            "columns, half of a head"
        ),
    )
