"""The members for the loader: the public functions, and the same in plain torch."""

from __future__ import annotations

from torch import Tensor

from precast.ops._folders import Members
from precast.ops.moe import (
    _top_two,
    moe_align_block_size,
    moe_permute,
    moe_unpermute,
    reference,
    topk_sigmoid,
    topk_softmax,
)


def _gating(
    logits: Tensor,
    k: int,
    sigmoid: bool,
    *,
    renormalize: bool = False,
    bias: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: str = "top2",
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    top_two = _top_two(group_score)
    return reference.topk_gating(logits, bias, k, groups, kept_groups, top_two, sigmoid, renormalize, scale)


def _softmax(logits: Tensor, k: int, **options: object) -> tuple[Tensor, Tensor]:
    """``precast.ops.topk_softmax`` in plain torch."""
    return _gating(logits, k, False, **options)  # type: ignore[arg-type]


def _sigmoid(logits: Tensor, k: int, **options: object) -> tuple[Tensor, Tensor]:
    """``precast.ops.topk_sigmoid`` in plain torch."""
    return _gating(logits, k, True, **options)  # type: ignore[arg-type]


def _permute(rows: Tensor, topk_ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """``precast.ops.moe_permute`` in plain torch."""
    return reference.moe_permute_few(rows, topk_ids, experts)


def _unpermute(rows: Tensor, positions: Tensor, weights: Tensor | None = None) -> Tensor:
    """``precast.ops.moe_unpermute`` in plain torch."""
    return reference.moe_combine_rows(rows, positions, weights, False)


KERNELS: Members = {
    "topk_softmax": topk_softmax,
    "topk_sigmoid": topk_sigmoid,
    "moe_align_block_size": moe_align_block_size,
    "moe_permute": moe_permute,
    "moe_unpermute": moe_unpermute,
}
PLAIN: Members = {
    "topk_softmax": _softmax,
    "topk_sigmoid": _sigmoid,
    "moe_align_block_size": reference.moe_align_block_size,
    "moe_permute": _permute,
    "moe_unpermute": _unpermute,
}
