"""Functions for inference that write keys and values of tokens to paged caches, in place and without a gradient.

``key`` and ``value`` are ``(tokens, heads, width)``, and may be views of a packed projection. A cache is a pool of
blocks, each with room for ``block_size`` tokens; slot ``s`` is position ``s % block_size`` of block
``s // block_size``. There are three layouts, distinguished by their shapes:

- ``(blocks, block_size, heads, width)`` for both caches, the layout of flash-attention;
- ``(blocks, heads, width / x, block_size, x)`` for keys and ``(blocks, heads, block_size, width)`` for values;
- the same for keys and ``(blocks, heads, width, block_size)`` for values, the layout of vLLM's paged attention. If
  ``width`` equals ``block_size``, the shape means the second layout; pass ``value_cache.transpose(2, 3)`` for this one.

Strides are free as long as the last dimension is contiguous; the last two ``value_cache`` shapes may have any strides.
So ``cache.transpose(1, 2)`` of ``(blocks, heads, block_size, width)`` is the first layout, and two halves of one buffer
can be two caches. All tensors have the same dtype, float32, float16 or bfloat16, and are on the same device. For caches
of 8 bits, ``precast.compat.vllm`` has functions that convert by torch's ops.

``slot_mapping`` is int64 with a slot for each token. The token of a negative slot is skipped. A slot that the caches do
not have is refused on the CPU before anything is written. On a GPU its token is skipped, because the host does not wait
for the GPU. If two tokens have the same slot, it is undefined which one is kept. ``key`` and ``value`` must not alias
the caches.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route
from precast.ops import _rotation
from precast.ops._checks import CONFUSED, FLOAT_TYPES, dtype_name, explain, no_gradient, require, same_device
from precast.ops._fx import Proxy, recorded
from precast.ops.norm import Casting, casting_code
from precast.ops.rotary import Rounding, rounds_each


def reshape_and_cache(
    key: Tensor, value: Tensor | None, key_cache: Tensor, value_cache: Tensor | None, slot_mapping: Tensor
) -> None:
    """Write ``key[i]`` and ``value[i]`` to slot ``slot_mapping[i]`` of paged caches. For inference.

    Args:
        key: ``(tokens, heads, width)``; float32, float16 or bfloat16, on the CPU or a GPU.
        value: with the shape, dtype and device of ``key``; None, as ``value_cache``, to write keys alone.
        key_cache: ``(blocks, block_size, heads, width)``, or a layout of vLLM.
        value_cache: in the same layout.
        slot_mapping: ``(tokens,)``, int64; a token with a negative slot is not written.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, a slot does not exist (CPU), or a gradient is
            required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        (key, value), (keys, values) = torch.randn(2, 2, 4, 64), torch.zeros(2, 8, 16, 4, 64)
        precast.ops.reshape_and_cache(key, value, keys, values, torch.tensor([0, 17]))
    """
    try:
        _RESHAPE(key, value, key_cache, value_cache, slot_mapping)
    except CONFUSED:
        explain(reshape_and_cache, locals())


def rotary_embedding_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """:func:`rotary_embedding_`, then :func:`reshape_and_cache`: the same bits, in one launch.

    Args:
        query: ``(tokens, query_heads, width)``; float32, float16 or bfloat16; rotated in place.
        key: ``(tokens, heads, width)``; rotated in place, even for tokens that are not written to the caches.
        value: with the shape of ``key``.
        cos: ``(tokens, rotary_dim / 2)``, or with ``positions`` a row for each position; float32 or as ``query``.
        sin: as ``cos``.
        key_cache: ``(blocks, block_size, heads, width)``, or a layout of vLLM.
        value_cache: in the same layout.
        slot_mapping: ``(tokens,)``, int64; a token with a negative slot is not written.
        positions: int32 or int64, the row of ``cos`` and ``sin`` for each token.
        interleaved: pairs are neighbours (GPT-J) instead of ``i`` and ``i + rotary_dim / 2`` (GPT-NeoX, Llama).

    Returns:
        ``(query, key)``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, a slot does not exist (CPU), or a gradient is
            required.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        (q, k, v), (cos, sin) = torch.randn(3, 2, 4, 64), torch.randn(2, 2, 32)
        keys, values = torch.zeros(2, 8, 16, 4, 64)
        precast.ops.rotary_embedding_and_cache(q, k, v, cos, sin, keys, values, torch.tensor([0, 17]))
    """
    try:
        _ROTATE(query, key, value, cos, sin, key_cache, value_cache, slot_mapping, positions, interleaved)
    except CONFUSED:
        explain(rotary_embedding_and_cache, locals())
    return query, key


def rms_norm_rotary_embedding_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    eps: float = 1e-6,
    casting: Casting = "llama",
    positions: Tensor | None = None,
    interleaved: bool = False,
    rounding: Rounding = "once",
) -> tuple[Tensor, Tensor]:
    """:func:`rms_norm_rotary_embedding` in place, then :func:`reshape_and_cache`: the same bits, in one launch.

    Args:
        query: ``(tokens, query_heads, width)``; float32, float16 or bfloat16; normalised and rotated in place.
        key: ``(tokens, heads, width)``; the same, even for tokens that are not written to the caches.
        value: with the shape of ``key``; unchanged.
        query_weight: ``(width,)``, float32 or as ``query``; None: no head is normalised.
        key_weight: as ``query_weight``.
        cos: as in :func:`rms_norm_rotary_embedding`.
        sin: as ``cos``.
        key_cache: ``(blocks, block_size, heads, width)``, or a layout of vLLM.
        value_cache: in the same layout.
        slot_mapping: ``(tokens,)``, int64; a token with a negative slot is not written.
        eps: added to the mean square; 0 or more.
        casting: as in :func:`rms_norm`.
        positions: int32 or int64, the row of ``cos`` and ``sin`` for each token.
        interleaved: pairs are neighbours (GPT-J) instead of ``i`` and ``i + rotary_dim / 2`` (GPT-NeoX, Llama).
        rounding: as in :func:`rms_norm_rotary_embedding`.

    Returns:
        ``(query, key)``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, a slot does not exist (CPU), or a gradient is
            required.
        ValueError: ``casting`` or ``rounding`` is none of the names.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        (q, k, v), (cos, sin), weight = torch.randn(3, 2, 4, 64), torch.randn(2, 2, 32), torch.ones(64)
        keys, values = torch.zeros(2, 8, 16, 4, 64)
        slots = torch.tensor([0, 17])
        precast.ops.rms_norm_rotary_embedding_and_cache(q, k, v, weight, weight, cos, sin, keys, values, slots)
    """
    if isinstance(query, Proxy):
        return recorded(rms_norm_rotary_embedding_and_cache, **locals())  # type: ignore[no-any-return]
    try:
        _NORM_ROTATE(
            *(query, key, value, query_weight, key_weight, cos, sin, key_cache, value_cache, slot_mapping, positions),
            *(eps, casting_code(casting), interleaved, rounds_each(rounding)),
        )
    except CONFUSED:
        explain(rms_norm_rotary_embedding_and_cache, locals())
    return query, key


_refuse_gradient = functools.partial(no_gradient, why="the caches are written in place; needed torch.no_grad()")


def _check(
    op: str, key: Tensor, value: Tensor | None, key_cache: Tensor, value_cache: Tensor | None, slot_mapping: Tensor
) -> None:
    """The kernels' checks, with the same messages in the same order, except those that need data or addresses."""
    absent, present = ("value", "value_cache") if value is None else ("value_cache", "value")
    require(
        (value is None) == (value_cache is None),
        lambda: f"{op}: {absent} is None and {present} is not; needed both, or neither to write keys alone",
    )
    require(key.dtype in FLOAT_TYPES, lambda: f"{op}: key is {dtype_name(key)}; needed float32, float16 or bfloat16")
    others = {"value": value, "key_cache": key_cache, "value_cache": value_cache}
    for name, other in others.items():
        if other is None:
            continue
        hint = "" if name == "value" else " (there is no kernel for caches of 8 bits)"
        text = f"{op}: {name} is {dtype_name(other)} and key is {dtype_name(key)}; needed one dtype{hint}"
        require(other.dtype == key.dtype, lambda: text)  # noqa: B023 - called at once or never
        same_device(op, name, other, key, "key")
    require(
        _fits(key, value, key_cache, value_cache),
        lambda: (
            f"{op}: key has shape {tuple(key.shape)}, value {_shape(value)}, key_cache {tuple(key_cache.shape)} "
            f"and value_cache {_shape(value_cache)}; needed (tokens, heads, width) twice, and (blocks, "
            "block_size, heads, width) twice, or (blocks, heads, width / x, block_size, x) and (blocks, heads, "
            "block_size, width) or (blocks, heads, width, block_size)"
        ),
    )
    require(
        slot_mapping.dtype == torch.int64, lambda: f"{op}: slot_mapping is {dtype_name(slot_mapping)}; needed int64"
    )
    same_device(op, "slot_mapping", slot_mapping, key, "key")
    require(
        slot_mapping.dim() == 1 and slot_mapping.shape[0] == key.shape[0],
        lambda: (
            f"{op}: slot_mapping has shape {tuple(slot_mapping.shape)}; needed ({key.shape[0]},), a slot for each token"
        ),
    )


def _shape(tensor: Tensor | None) -> str:
    return "None" if tensor is None else str(tuple(tensor.shape))


def _fits(key: Tensor, value: Tensor | None, key_cache: Tensor, value_cache: Tensor | None) -> bool:
    if key.dim() != 3 or (value is not None and value.shape != key.shape) or key_cache.dim() not in (4, 5):
        return False
    _, heads, width = key.shape
    if key_cache.dim() == 4:
        return key_cache.shape[2:] == (heads, width) and (value_cache is None or value_cache.shape == key_cache.shape)
    blocks, cache_heads, pieces, block_size, piece = key_cache.shape
    if cache_heads != heads or pieces * piece != width:
        return False
    sizes = ((blocks, heads, block_size, width), (blocks, heads, width, block_size))
    return value_cache is None or value_cache.shape in sizes


with namespace.family("kv_cache", __package__):
    RESHAPE_AND_CACHE = register(
        "reshape_and_cache",
        check=_check,
        result=None,
        gradient=_refuse_gradient("reshape_and_cache"),
    )
    ROTARY_EMBEDDING_AND_CACHE = register(
        "rotary_embedding_and_cache",
        check=(_check, _rotation.inputs),
        result=None,
        gradient=_refuse_gradient("rotary_embedding_and_cache"),
    )
    RMS_NORM_ROTARY_EMBEDDING_AND_CACHE = register(
        "rms_norm_rotary_embedding_and_cache",
        check=(_check, _rotation.normed_inputs),
        result=None,
        gradient=_refuse_gradient("rms_norm_rotary_embedding_and_cache"),
    )

_RESHAPE = Route(RESHAPE_AND_CACHE, _refuse_gradient("reshape_and_cache"))
_ROTATE = Route(ROTARY_EMBEDDING_AND_CACHE, _refuse_gradient("rotary_embedding_and_cache"))
_NORM_ROTATE = Route(RMS_NORM_ROTARY_EMBEDDING_AND_CACHE, _refuse_gradient("rms_norm_rotary_embedding_and_cache"))
