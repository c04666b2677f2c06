"""Attention of the newest tokens of each sequence over the keys and values in a paged cache, without a gradient.

The split over the keys and the merge of partial softmaxes follow Flash-Decoding (Dao and others, 2023) and the online
softmax of Milakov and Gimelshein (2018). Results are deterministic: the same call gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _checks
from precast.ops._checks import FLOAT_TYPES, dtype_name, integers, no_gradient, require, same_device
from precast.ops._fx import Proxy, recorded

_OP = "paged_decode_attention"
WIDTHS = (64, 80, 96, 128, 192, 256)  # head widths that the kernels support
_MOST_QUERIES = 16
_MOST_BLOCK_SIZE = 256
_NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)


@overload
def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale * query @ keys.mT) @ values``: attention of each sequence's last tokens over all of its tokens.

    Args:
        query: ``(sequences, heads, width)``, one token for each sequence, or ``(sequences, queries, heads, width)``
            with up to 16 tokens (speculative decoding); float32, float16 or bfloat16. Query ``i`` is the token at
            position ``length - queries + i``, and sees the keys up to its own.
        key_cache: ``(blocks, block_size, kv_heads, width)`` or ``(blocks, kv_heads, width / x, block_size, x)``, the
            layouts of :func:`reshape_and_cache`. ``heads`` is a multiple of ``kv_heads``: head ``h`` reads key head
            ``h // (heads / kv_heads)``. A block has 1 to 256 tokens. The dtype is that of ``query``, float8_e4m3fn or
            float8_e5m2. Any strides, as long as the last dimension is contiguous.
        value_cache: ``(blocks, block_size, kv_heads, value_width)``, ``(blocks, kv_heads, block_size, value_width)``
            or ``(blocks, kv_heads, value_width, block_size)``: the layouts of :func:`reshape_and_cache`, with the dtype
            of ``key_cache``. Widths are 64, 80, 96, 128, 192 or 256, and may differ.
        block_tables: int32 or int64, ``(sequences, blocks of a sequence)``: the block of each ``block_size`` tokens.
        lengths: int32 or int64, ``(sequences,)``: tokens in the cache, those of ``query`` included.
        scale: the factor of the scores; by default ``width ** -0.5``.
        window: the maximum number of keys that a query attends to, its own included. Blocks before the window are
            not read.
        softcap: replace a score ``x`` by ``softcap * tanh(x / softcap)``; 0: do not.
        alibi_slopes: float32, ``(heads,)``: a slope times (position of the key - position of the query) is added.
        sinks: float32, ``(heads,)``: an additional score for each head, which counts only in the denominator of the
            softmax.
        key_scale: float32, ``(1,)`` or ``(kv_heads,)``: factors of the elements of ``key_cache``.
        value_scale: the same for ``value_cache``.
        return_lse: return the logarithms of the denominators as well.

    Returns:
        A tensor like ``query`` with ``value_width`` for ``width``; with ``return_lse`` also float32 ``(sequences,
        heads)`` or ``(sequences, queries, heads)``. For a query without visible keys the result is zero, and without a
        sink its ``lse`` is ``-inf``.

    Raises:
        RuntimeError: the shapes, dtypes or devices do not fit, or a gradient is required. The CPU also refuses a
            negative length, a length beyond the block table, and a block that the caches do not have. A GPU clamps such
            a length and skips the keys of such a block: nothing is read out of bounds.

    Example::

        keys, values = torch.randn(2, 9, 16, 8, 128)  # nine blocks of 16 tokens, 8 heads of 128
        tables, lengths = torch.tensor([[3, 5], [0, 8]]), torch.tensor([20, 7])
        out = precast.ops.paged_decode_attention(torch.randn(2, 32, 128), keys, values, tables, lengths)
        assert out.shape == (2, 32, 128)
    """
    if isinstance(query, Proxy):
        return recorded(paged_decode_attention, **locals())  # type: ignore[no-any-return]
    try:
        given = (query, key_cache, value_cache, block_tables, lengths)
        optional = (alibi_slopes, sinks, key_scale, value_scale)
        return attend(_kernel, given, scale, window, softcap, optional, return_lse)
    except _checks.CONFUSED:
        _checks.explain(paged_decode_attention, locals())


def attend(
    implementation: Callable[..., tuple[Tensor, Tensor]],
    given: Sequence[Tensor],
    scale: float | None,
    window: int | None,
    softcap: float,
    optional: Sequence[Tensor | None],
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convert the arguments of :func:`paged_decode_attention` to those of the op, and call an implementation."""
    query, *others = given
    single = query.dim() == 3
    width = query.shape[-1] if query.dim() else 1
    numbers = (1 / math.sqrt(max(width, 1)) if scale is None else scale, window or 0, softcap)
    result, lse = implementation(query.unsqueeze(1) if single else query, *others, *numbers, *optional)
    if single:
        result, lse = result.squeeze(1), lse.squeeze(1)
    return (result, lse) if return_lse else result


_refuse_gradient = no_gradient(_OP, "the op is for inference; needed torch.no_grad()")


def _check(
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
) -> None:
    """The kernels' checks, with the same messages in the same order, except those that need data or addresses."""
    _check_caches(query, key_cache, value_cache)
    sequences, _, heads, _ = query.shape
    kv_heads = key_cache.shape[1 if key_cache.dim() == 5 else 2]
    for name, one in {"block_tables": block_tables, "lengths": lengths}.items():
        integers(_OP, name, one, query, "query")
    require(
        block_tables.dim() == 2 and block_tables.shape[0] == sequences,
        lambda: (
            f"{_OP}: block_tables has shape {tuple(block_tables.shape)}; needed ({sequences}, blocks of a sequence)"
        ),
    )
    require(
        lengths.dim() == 1 and lengths.shape[0] == sequences,
        lambda: f"{_OP}: lengths has shape {tuple(lengths.shape)}; needed ({sequences},), a length for each sequence",
    )
    _check_numbers("alibi_slopes", alibi_slopes, heads, False, query)
    _check_numbers("sinks", sinks, heads, False, query)
    _check_numbers("key_scale", key_scale, kv_heads, True, query)
    _check_numbers("value_scale", value_scale, kv_heads, True, query)
    require(math.isfinite(scale), lambda: f"{_OP}: scale is {scale:g}; needed a finite number")
    require(
        softcap >= 0 and math.isfinite(softcap),
        lambda: f"{_OP}: softcap is {softcap:g}; needed a finite number that is not negative",
    )
    require(0 <= window < 1 << 31, lambda: f"{_OP}: window is {window}; needed 0 for none, to 2^31 - 1")


def _check_caches(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    require(
        query.dtype in FLOAT_TYPES, lambda: f"{_OP}: query is {dtype_name(query)}; needed float32, float16 or bfloat16"
    )
    require(
        key_cache.dtype in (query.dtype, *_NARROW),
        lambda: (
            f"{_OP}: key_cache is {dtype_name(key_cache)} and query is {dtype_name(query)}; needed the dtype of query, "
            "float8_e4m3fn or float8_e5m2"
        ),
    )
    require(
        value_cache.dtype == key_cache.dtype,
        lambda: (
            f"{_OP}: value_cache is {dtype_name(value_cache)} and key_cache is {dtype_name(key_cache)}; "
            "needed one dtype"
        ),
    )
    same_device(_OP, "value_cache", value_cache, key_cache, "key_cache")
    same_device(_OP, "key_cache", key_cache, query, "query")
    require(
        _fits(query, key_cache, value_cache),
        lambda: (
            f"{_OP}: query has shape {tuple(query.shape)}, key_cache {tuple(key_cache.shape)} and value_cache "
            f"{tuple(value_cache.shape)}; needed (sequences, queries, heads, width), and (blocks, block_size, "
            "kv_heads, width) twice, or (blocks, kv_heads, width / x, block_size, x) and "
            "(blocks, kv_heads, block_size, width) or (blocks, kv_heads, width, block_size)"
        ),
    )
    _, queries, heads, width = query.shape
    pieces = key_cache.dim() == 5
    kv_heads, block_size = key_cache.shape[1 if pieces else 2], key_cache.shape[3 if pieces else 1]
    value_width = value_cache.shape[value_dims(key_cache, value_cache)[2]]
    require(
        width in WIDTHS and value_width in WIDTHS,
        lambda: (
            f"{_OP}: heads have {width} elements in keys and {value_width} in values; "
            "needed 64, 80, 96, 128, 192 or 256"
        ),
    )
    require(
        1 <= queries <= _MOST_QUERIES,
        lambda: f"{_OP}: query has {queries} queries for a sequence; needed 1 to {_MOST_QUERIES}",
    )
    require(
        kv_heads >= 1 and heads >= 1 and heads % kv_heads == 0,
        lambda: f"{_OP}: query has {heads} heads and the caches have {kv_heads}; needed a multiple",
    )
    require(
        1 <= block_size <= _MOST_BLOCK_SIZE,
        lambda: f"{_OP}: a block has {block_size} tokens; needed 1 to {_MOST_BLOCK_SIZE}",
    )


def value_dims(key_cache: Tensor, value_cache: Tensor) -> tuple[int, int, int]:
    """The dimensions of heads, positions and elements of a value cache."""
    if key_cache.dim() == 4:
        return 2, 1, 3
    block_size = key_cache.shape[3]
    by_element = value_cache.shape[2] != block_size and value_cache.shape[3] == block_size
    return (1, 3, 2) if by_element else (1, 2, 3)


def _fits(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
    if query.dim() != 4 or value_cache.dim() != 4 or key_cache.dim() not in (4, 5):
        return False
    if key_cache.dim() == 4:
        return value_cache.shape[:3] == key_cache.shape[:3] and key_cache.shape[3] == query.shape[3]
    blocks, kv_heads, pieces, block_size, piece = key_cache.shape
    head, position, _ = value_dims(key_cache, value_cache)
    sizes = (value_cache.shape[0], value_cache.shape[head], value_cache.shape[position])
    return sizes == (blocks, kv_heads, block_size) and pieces * piece == query.shape[3]


def _check_numbers(name: str, numbers: Tensor | None, count: int, or_one: bool, query: Tensor) -> None:
    if numbers is None:
        return
    require(numbers.dtype == torch.float32, lambda: f"{_OP}: {name} is {dtype_name(numbers)}; needed float32")
    same_device(_OP, name, numbers, query, "query")
    require(
        numbers.dim() == 1 and (numbers.shape[0] == count or (or_one and numbers.shape[0] == 1)),
        lambda: (
            f"{_OP}: {name} has shape {tuple(numbers.shape)}; "
            f"needed ({count},){' or (1,)' if or_one else ''}, contiguous"
        ),
    )


def _result(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> tuple[Tensor, Tensor]:
    result = query.new_empty((*query.shape[:3], value_cache.shape[value_dims(key_cache, value_cache)[2]]))
    return result, query.new_empty(query.shape[:3], dtype=torch.float32)


with namespace.family("decode_attention", __package__):
    PAGED_DECODE_ATTENTION = register(
        _OP,
        check=_check,
        result=_result,
        gradient=_refuse_gradient,
    )

_kernel = Route(PAGED_DECODE_ATTENTION, _refuse_gradient)
