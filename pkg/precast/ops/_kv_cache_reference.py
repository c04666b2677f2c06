"""What the ops on paged caches write, in plain torch."""

from __future__ import annotations

from torch import Tensor


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """``key[i]`` and ``value[i]`` to the slot of ``slot_mapping[i]``; what has none inside of the caches is left out."""
    paged = key_cache.dim() == 5
    block_size = key_cache.shape[3 if paged else 1]
    kept = (slot_mapping >= 0) & (slot_mapping < key_cache.shape[0] * block_size)
    slots = slot_mapping[kept]
    block, position = slots // block_size, slots % block_size
    if paged:
        key_cache[block, :, :, position] = key[kept].unflatten(-1, (key_cache.shape[2], key_cache.shape[4]))
        value_cache[block, :, position] = value[kept]
    else:
        key_cache[block, position] = key[kept]
        value_cache[block, position] = value[kept]
