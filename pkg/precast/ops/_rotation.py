"""The rotary ops' checks that need only metadata, with the kernels' error messages (csrc/rotary/rotate.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._checks import FLOAT_TYPES, dtype_name, integers, require, same_device, same_kind, same_shape


def inputs(
    op: str,
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    whole: bool = False,
) -> None:
    """Raise unless ``query``, ``key``, the tables and the positions are for the same tokens; tables may be whole."""
    require(
        query.dtype in FLOAT_TYPES, lambda: f"{op}: query is {dtype_name(query)}; needed float32, float16 or bfloat16"
    )
    require(
        query.dim() >= 3, lambda: f"{op}: query has shape {tuple(query.shape)}; needed (..., tokens, heads, head_dim)"
    )
    if key is not None:
        _key(op, key, query)
    _tables(op, cos, sin, query, whole, interleaved)
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
    integers(op, "positions", positions, query, "query")
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


def normed_inputs(
    op: str,
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
) -> None:
    """:func:`inputs`, and raise unless there are weights for all heads or for none."""
    inputs(op, query, key, cos, sin, positions, interleaved, whole=True)
    require(casting in (0, 1, 2), lambda: f"{op}: casting is {casting}; needed 0, 1 or 2")
    require(eps >= 0, lambda: f"{op}: eps is {eps:g}; needed a number that is not negative")
    require(
        key is not None or key_weight is None,
        lambda: f"{op}: key is None and key_weight is not; needed None for both",
    )
    absent, present = ("key", "query") if key_weight is None else ("query", "key")
    require(
        key is None or (query_weight is None) == (key_weight is None),
        lambda: (
            f"{op}: {absent}_weight is None and {present}_weight is not; needed both, or neither to leave out the norm"
        ),
    )
    for name, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        if weight is None:
            continue
        kind = f"{op}: {name} is {dtype_name(weight)} and query is {dtype_name(query)}; needed float32, or that dtype"
        found, needed = tuple(weight.shape), f"({query.shape[-1]},), a number for each element of a head"
        shape = f"{op}: {name} has shape {found}; needed {needed}"
        require(weight.dtype in (torch.float32, query.dtype), lambda: kind)  # noqa: B023 - called at once or never
        same_device(op, name, weight, query, "query")
        if query_weight is not None:
            same_kind(op, name, weight, query_weight, "query_weight")
        require(weight.dim() == 1 and weight.shape[0] == query.shape[-1], lambda: shape)  # noqa: B023


def _tables(op: str, cos: Tensor, sin: Tensor, query: Tensor, whole: bool, interleaved: bool) -> None:
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
    or_whole = ", or head_dim columns (not if interleaved)" if whole else ""
    require(
        cos.shape[1] <= most or (whole and not interleaved and cos.shape[1] == query.shape[-1] == 2 * most),
        lambda: (
            f"{op}: cos has shape {tuple(cos.shape)} and query has {tuple(query.shape)}; needed at most {most} "
            f"columns, half of a head{or_whole}"
        ),
    )
