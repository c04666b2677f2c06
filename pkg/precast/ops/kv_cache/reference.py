"""The ops that write to paged caches, in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops.rotary.reference import rms_norm_rotary_embedding, rotary_embedding_


def reshape_and_cache(
    key: Tensor, value: Tensor | None, key_cache: Tensor, value_cache: Tensor | None, slot_mapping: Tensor
) -> None:
    """Write ``key[i]`` and ``value[i]`` to slot ``slot_mapping[i]``; tokens with a slot out of range are skipped."""
    paged = key_cache.dim() == 5
    block_size = key_cache.shape[3 if paged else 1]
    kept = (slot_mapping >= 0) & (slot_mapping < key_cache.shape[0] * block_size)
    slots = slot_mapping[kept]
    block, position = slots // block_size, slots % block_size
    if paged:
        key_cache[block, :, :, position] = key[kept].unflatten(-1, (key_cache.shape[2], key_cache.shape[4]))
    else:
        key_cache[block, position] = key[kept]
    if value is None or value_cache is None:
        return
    if not paged:
        value_cache[block, position] = value[kept]
    elif value_cache.shape[2:] == (block_size, value.shape[2]):
        value_cache[block, :, position] = value[kept]
    else:
        value_cache[block, :, :, position] = value[kept]


def rotary_embedding_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    positions: Tensor | None,
    interleaved: bool,
) -> None:
    """Rotate ``query`` and ``key`` in place, and write the rotated ``key`` and ``value`` to the caches."""
    rotary_embedding_(query, key, cos, sin, positions, interleaved, False)
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)


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
    positions: Tensor | None,
    eps: float,
    casting: int,
    interleaved: bool,
    each_product: bool,
) -> None:
    """The same with heads that are normalised first, if there are weights."""
    turned = rms_norm_rotary_embedding(
        *(query, key, query_weight, key_weight, cos, sin, positions, eps, casting, interleaved, each_product, False)
    )
    query.copy_(turned[0])
    key.copy_(turned[1])
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
