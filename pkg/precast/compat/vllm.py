"""Functions of ``vllm._custom_ops`` for paged caches, by their names and argument orders, on top of precast's ops.

A cache of 8 bits holds ``x / scale``, rounded to the nearest number of its format and at most its largest one. Its
dtype is float8_e4m3fn, float8_e5m2, or uint8 with the format that ``kv_cache_dtype`` names: ``"fp8"`` or
``"fp8_e4m3"``, or ``"fp8_e5m2"``. A scale has one number, or one for each head. torch's ops convert, then a kernel
writes; nothing waits for a GPU. Tokens beyond those of ``slot_mapping`` are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["copy_blocks", "reshape_and_cache", "reshape_and_cache_flash", "swap_blocks"]


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """Write tokens to ``(blocks, heads, width / x, block_size, x)`` and ``(blocks, heads, width, block_size)``."""
    import torch

    from precast import ops

    key, value = key[: len(slot_mapping)], value[: len(slot_mapping)]
    with torch.no_grad():
        if kv_cache_dtype == "auto":
            if value_cache.shape[2] == value_cache.shape[3]:  # the shape alone would mean the other layout
                value_cache = value_cache.transpose(2, 3)
            ops.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
            return
        keys = _narrow("key", key, key_cache, kv_cache_dtype, k_scale)
        values = _narrow("value", value, value_cache, kv_cache_dtype, v_scale)
        ops.reshape_and_cache(_pairs(keys), None, _pairs(key_cache), None, slot_mapping)
        _write_columns(values.view(torch.uint8), value_cache.view(torch.uint8), slot_mapping)


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """Write tokens to two caches of ``(blocks, block_size, heads, width)``."""
    import torch

    from precast import ops

    key, value = key[: len(slot_mapping)], value[: len(slot_mapping)]
    with torch.no_grad():
        if kv_cache_dtype != "auto":
            key = _pairs(_narrow("key", key, key_cache, kv_cache_dtype, k_scale))
            value = _pairs(_narrow("value", value, value_cache, kv_cache_dtype, v_scale))
            key_cache, value_cache = _pairs(key_cache), _pairs(value_cache)
        ops.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


def copy_blocks(key_caches: Sequence[Tensor], value_caches: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy block ``block_mapping[i, 0]`` to block ``block_mapping[i, 1]`` in each cache, all read before written."""
    import torch

    caches = [*key_caches, *value_caches]
    _check_mapping(block_mapping, [(cache, cache) for cache in caches])
    with torch.no_grad():
        for cache in caches:
            taken, written = (block_mapping[:, i].to(cache.device) for i in (0, 1))
            content = _bytes(cache)
            content.index_copy_(0, written, content.index_select(0, taken))


def swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    """Copy block ``block_mapping[i, 0]`` of ``src`` to block ``block_mapping[i, 1]`` of ``dst``, one after the other.

    The caches may be on different devices; ``block_mapping`` is on the CPU.
    """
    import torch

    if not block_mapping.is_cpu:
        raise ValueError(f"block_mapping is on {block_mapping.device}; needed the CPU, to avoid waiting for the GPU")
    if src.dtype != dst.dtype or src.shape[1:] != dst.shape[1:]:
        found = " and ".join(f"{tuple(cache.shape)} of {cache.dtype}" for cache in (src, dst))
        raise ValueError(f"src and dst are {found}; needed blocks of one shape and dtype")
    _check_mapping(block_mapping, [(src, dst)])
    with torch.no_grad():
        for taken, written in block_mapping.tolist():
            dst[written].copy_(src[taken])


def _check_mapping(mapping: Tensor, caches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise before anything is written; a mapping on a GPU is checked there."""
    if mapping.dim() != 2 or mapping.shape[1] != 2 or mapping.is_floating_point():
        raise ValueError(
            f"block_mapping has shape {tuple(mapping.shape)} and dtype {mapping.dtype}; needed (pairs, 2) integers"
        )
    if not mapping.is_cpu or mapping.numel() == 0:
        return
    low, high = mapping.amin(0).tolist(), mapping.amax(0).tolist()
    for pair in caches:
        for name, cache, least, most in zip(("from", "to"), pair, low, high, strict=True):
            if least < 0 or most >= cache.shape[0]:
                blocks = f"blocks {least} to {most}; needed 0 to {cache.shape[0] - 1}"
                raise ValueError(f"block_mapping copies {name} {blocks}")


def _narrow(name: str, x: Tensor, cache: Tensor, kv_cache_dtype: str, scale: Tensor) -> Tensor:
    """``x / scale`` in the format of the cache."""
    dtype = _format(cache, kv_cache_dtype)
    if scale.numel() not in (1, x.shape[1]):
        raise ValueError(
            f"the scale of {name} has {scale.numel()} numbers; needed 1 or {x.shape[1]}, one for each head"
        )
    most = _largest(dtype)
    shape = (-1, 1) if scale.numel() > 1 else ()
    return (x.float() / scale.float().reshape(shape).to(x.device)).clamp(-most, most).to(dtype)


def _format(cache: Tensor, kv_cache_dtype: str) -> torch.dtype:
    import torch

    formats = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    named = formats.get(kv_cache_dtype)
    if named is None:
        raise ValueError(
            f"kv_cache_dtype is {kv_cache_dtype!r}; needed 'auto' or one of {', '.join(map(repr, formats))}"
        )
    if cache.dtype not in (named, torch.uint8):
        raise ValueError(
            f"kv_cache_dtype is {kv_cache_dtype!r} and the cache is {cache.dtype}; needed {named} or uint8"
        )
    return named


def _largest(dtype: torch.dtype) -> float:
    import torch

    return float(torch.finfo(dtype).max)


def _bytes(cache: Tensor) -> Tensor:
    """A cache of 8 bits as integers, which all of torch's ops take; another cache itself."""
    import torch

    return cache.view(torch.uint8) if cache.element_size() == 1 else cache


def _pairs(tensor: Tensor) -> Tensor:
    """Two elements of 8 bits as one of 16, which the kernel copies as it is."""
    import torch

    return tensor.view(torch.float16)


def _write_columns(values: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write to a cache by position, where two elements of a token are no neighbours. No kernel does that for 8 bits.

    A token without a slot writes what the first token with one writes, or else what is there.
    """
    import torch

    size = cache.shape[3]
    if slots.numel() == 0:
        return
    valid = (slots >= 0) & (slots < cache.shape[0] * size)
    source = torch.where(valid, torch.arange(len(slots), device=slots.device), valid.int().argmax())
    chosen = slots[source].clamp(min=0)
    chosen = torch.where(valid.any(), chosen, 0)
    block, position = chosen // size, chosen % size
    cache[block, :, :, position] = torch.where(valid.any(), values[source], cache[block, :, :, position])
