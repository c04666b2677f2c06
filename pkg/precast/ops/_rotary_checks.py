"""The checks of the rotary ops that need only metadata, in the kernels' words (csrc/rotary/rotate.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._checks import FLOAT_TYPES, _dtype, _require


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
    """Raises unless the heads of both belong to the same tokens, and the tables and positions to them."""
    _require(query.dtype in FLOAT_TYPES, lambda: f"{op}: query is {_dtype(query)}; needed float32, float16 or bfloat16")
    _require(
        query.dim() >= 3, lambda: f"{op}: query has shape {tuple(query.shape)}; needed (..., tokens, heads, head_dim)"
    )
    if key is not None:
        _key(op, key, query)
    _tables(op, cos, sin, query)
    tokens = query.shape[-3]
    if positions is None:
        _require(
            cos.shape[0] == tokens,
            lambda: (
                f"{op}: cos has shape {tuple(cos.shape)} and query has {tuple(query.shape)}; needed one row for each of "
                f"{tokens} tokens, or positions"
            ),
        )
        return
    _require(
        positions.dtype in (torch.int32, torch.int64),
        lambda: f"{op}: positions is {_dtype(positions)}; needed int32 or int64",
    )
    _one_device(op, "positions", positions, query)
    _require(
        positions.dim() == 1 and positions.shape[0] == tokens,
        lambda: (
            f"{op}: positions has shape {tuple(positions.shape)} and query has {tuple(query.shape)}; needed ({tokens},), "
            "one for each token"
        ),
    )
    _require(
        cos.shape[0] > 0 or tokens == 0,
        lambda: f"{op}: cos has shape {tuple(cos.shape)}; needed a row for each position",
    )


def _key(op: str, key: Tensor, query: Tensor) -> None:
    _require(
        key.dtype == query.dtype,
        lambda: f"{op}: key is {_dtype(key)} and query is {_dtype(query)}; needed one dtype",
    )
    _one_device(op, "key", key, query)
    _require(
        key.dim() == query.dim() and key.shape[:-2] == query.shape[:-2] and key.shape[-1] == query.shape[-1],
        lambda: (
            f"{op}: key has shape {tuple(key.shape)} and query has {tuple(query.shape)}; needed the same but for the "
            "number of heads"
        ),
    )


def _tables(op: str, cos: Tensor, sin: Tensor, query: Tensor) -> None:
    _require(
        cos.dtype in (torch.float32, query.dtype),
        lambda: f"{op}: cos is {_dtype(cos)} and query is {_dtype(query)}; needed float32, or that dtype",
    )
    _one_device(op, "cos", cos, query)
    _require(sin.dtype == cos.dtype, lambda: f"{op}: sin is {_dtype(sin)} and cos is {_dtype(cos)}; needed one dtype")
    _one_device(op, "sin", sin, cos, "cos")
    _require(
        cos.dim() == 2,
        lambda: f"{op}: cos has shape {tuple(cos.shape)}; needed (tokens or positions, rotary_dim / 2)",
    )
    _require(
        sin.shape == cos.shape, lambda: f"{op}: sin has shape {tuple(sin.shape)}; needed {tuple(cos.shape)}, as cos"
    )
    most = query.shape[-1] // 2
    _require(
        cos.shape[1] <= most,
        lambda: (
            f"{op}: cos has shape {tuple(cos.shape)} and query has {tuple(query.shape)}; needed at most {most} columns, "
            "half of a head"
        ),
    )


def _one_device(op: str, name: str, tensor: Tensor, like: Tensor, like_name: str = "query") -> None:
    _require(
        tensor.device == like.device,
        lambda: f"{op}: {name} is on {tensor.device} and {like_name} on {like.device}; needed one device",
    )
