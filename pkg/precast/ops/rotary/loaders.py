"""The members for the loader of rotary embedding: the public functions, and the same in plain torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.rotary import get_cos_and_sin, reference, rotary_embedding, rotary_embedding_


def _plain(
    query: Tensor,
    key: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``precast.ops.rotary_embedding`` in plain torch."""
    both = reference.rotary_embedding(query, key, cos, sin, positions, interleaved, False)
    return both[0], None if key is None else both[1]


def _plain_in_place(query: Tensor, key: Tensor | None, *args: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The same in place."""
    turned = _plain(query, key, *args, **kwargs)
    query.copy_(turned[0])
    if key is not None and turned[1] is not None:
        key.copy_(turned[1])
    return query, key


KERNELS: Members = {
    "rotary_embedding": rotary_embedding,
    "rotary_embedding_": rotary_embedding_,
    "get_cos_and_sin": get_cos_and_sin,
}
PLAIN: Members = {
    "get_cos_and_sin": get_cos_and_sin,
    "rotary_embedding": _plain,
    "rotary_embedding_": _plain_in_place,
}
