"""The writing members for the loader of paged caches, and the same in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.kv_cache import reference, reshape_and_cache, rotary_embedding_and_cache


def _plain(
    query: Tensor, key: Tensor, *args: Tensor, positions: Tensor | None = None, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """``precast.ops.rotary_embedding_and_cache`` in plain torch."""
    value, cos, sin, key_cache, value_cache, slots = args
    reference.rotary_embedding_and_cache(
        query, key, value, cos, sin, key_cache, value_cache, slots, positions, interleaved
    )
    return query, key


KERNELS: Members = {
    "reshape_and_cache": reshape_and_cache,
    "rotary_embedding_and_cache": rotary_embedding_and_cache,
}
PLAIN: Members = {"reshape_and_cache": reference.reshape_and_cache, "rotary_embedding_and_cache": _plain}
