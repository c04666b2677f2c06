"""The attention members for the loader of paged caches, and the same in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.decode_attention import attend, paged_decode_attention, reference


def _plain(
    query: Tensor,
    key_cache: Tensor,
    *args: Tensor,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``precast.ops.paged_decode_attention`` in plain torch."""
    optional = (alibi_slopes, sinks, key_scale, value_scale)
    plain, given = reference.paged_decode_attention, (query, key_cache, *args)
    return attend(plain, given, scale, window, softcap, optional, return_lse)


KERNELS: Members = {"paged_decode_attention": paged_decode_attention}
PLAIN: Members = {"paged_decode_attention": _plain}
