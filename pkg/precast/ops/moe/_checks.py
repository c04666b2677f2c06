"""The kernels' checks that need only metadata, with the same messages in the same order."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops._checks import FLOAT_TYPES, dtype_name, require, same_device, same_kind, same_shape

MOST_EXPERTS = 1024
FEW_PAIRS = 16384  # kFewPairs of csrc/moe/args.h
FEW_COUNTED = 2**24  # tokens times pairs: with more, blocks that each count all pairs take longer than a sort
_MOST_PAIRS = 2**31


def gating(op: str, logits: Tensor, bias: Tensor | None, k: int, groups: int, kept_groups: int) -> None:
    """Checks of ``topk_gating``."""
    _logits(op, logits)
    experts = logits.shape[-1]
    require(
        groups >= 1 and experts % groups == 0,
        lambda: f"{op}: {groups} groups of {experts} experts; needed a divisor of the number of experts",
    )
    require(
        1 <= kept_groups <= groups,
        lambda: f"{op}: kept_groups is {kept_groups}; needed 1 to {groups}, the number of groups",
    )
    most = experts // groups * kept_groups
    require(1 <= k <= most, lambda: f"{op}: k is {k}; needed 1 to {most}, the experts in reach")
    if bias is not None:
        require(bias.dtype == torch.float32, lambda: f"{op}: bias is {dtype_name(bias)}; needed float32")
        same_device(op, "bias", bias, logits, "logits")
        require(
            bias.dim() == 1 and bias.shape[0] == experts,
            lambda: f"{op}: bias has shape {tuple(bias.shape)}; needed ({experts},), a number for each expert",
        )


def gating_backward(op: str, grad: Tensor, logits: Tensor, topk_ids: Tensor) -> None:
    """Checks of ``topk_gating_backward``."""
    _logits(op, logits)
    require(topk_ids.dtype == torch.int32, lambda: f"{op}: topk_ids is {dtype_name(topk_ids)}; needed int32")
    same_device(op, "topk_ids", topk_ids, logits, "logits")
    experts = logits.shape[-1]
    require(
        topk_ids.dim() == logits.dim()
        and topk_ids.shape[:-1] == logits.shape[:-1]
        and 1 <= topk_ids.shape[-1] <= experts,
        lambda: (
            f"{op}: topk_ids has shape {tuple(topk_ids.shape)} and logits {tuple(logits.shape)}; needed 1 to {experts} "
            "experts for each row"
        ),
    )
    _weights(op, "grad", grad, "topk_ids", topk_ids)


def align(op: str, topk_ids: Tensor, experts: int, block_size: int) -> None:
    """Checks of ``moe_align_block_size``."""
    ids(op, topk_ids, experts)
    require(1 <= block_size < _MOST_PAIRS, lambda: f"{op}: block_size is {block_size}; needed 1 or more")
    slots = slots_of(topk_ids, experts, block_size)
    require(
        slots < _MOST_PAIRS,
        lambda: (
            f"{op}: {topk_ids.numel()} pairs in blocks of {block_size} for {experts} experts may need {slots} slots; "
            "needed fewer than 2^31"
        ),
    )


def aligned_slots(topk_ids: Tensor, experts: int, block_size: int) -> int:
    """The rows that ``moe_permute`` returns for an ``align_block_size``: whole blocks, as many as may be needed."""
    if not 1 <= block_size < 2**31:  # no torch._check, whose message torch.compile cannot trace
        raise RuntimeError(f"moe_permute: align_block_size is {block_size}; needed 1 or more, and less than 2^31")
    return (slots_of(topk_ids, experts, block_size) + block_size - 1) // block_size * block_size


def slots_of(topk_ids: Tensor, experts: int, block_size: int) -> int:
    """The most slots that can be in use."""
    pairs = topk_ids.numel()
    most: int = torch.sym_min(pairs, experts)
    return pairs + most * (block_size - 1)


def align_result(topk_ids: Tensor, experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised results of ``moe_align_block_size``."""
    slots = slots_of(topk_ids, experts, block_size)
    blocks = (slots + block_size - 1) // block_size
    sizes = (slots, blocks, 1)
    first, second, third = (topk_ids.new_empty((size,), dtype=torch.int32) for size in sizes)
    return first, second, third


def permute_few(op: str, rows: Tensor, topk_ids: Tensor, experts: int) -> None:
    """Checks of ``moe_permute_few``."""
    _rows(op, rows)
    ids(op, topk_ids, experts)
    same_device(op, "topk_ids", topk_ids, rows, "rows")
    require(
        topk_ids.numel() <= FEW_PAIRS and topk_ids.shape[1] >= 1,
        lambda: f"{op}: topk_ids has shape {tuple(topk_ids.shape)}; needed 1 or more for a token, {FEW_PAIRS} in all",
    )
    require(
        topk_ids.shape[0] == rows.shape[0],
        lambda: f"{op}: topk_ids has shape {tuple(topk_ids.shape)} and rows {tuple(rows.shape)}; needed as many rows",
    )


def permute_rows(op: str, rows: Tensor, positions: Tensor, slots: int, whole: bool) -> None:
    """Checks of ``moe_permute_rows``."""
    _rows(op, rows)
    _places(op, positions, rows, slots, whole)
    require(
        positions.shape[0] == rows.shape[0],
        lambda: f"{op}: positions has shape {tuple(positions.shape)} and rows {tuple(rows.shape)}; needed as many rows",
    )


def combine_rows(op: str, rows: Tensor, positions: Tensor, weights: Tensor | None, whole: bool) -> None:
    """Checks of ``moe_combine_rows``."""
    _rows(op, rows)
    _places(op, positions, rows, rows.shape[0], whole)
    if weights is not None:
        _weights(op, "weights", weights, "positions", positions)


def combine_rows_backward(op: str, grad: Tensor, rows: Tensor, positions: Tensor, weights: Tensor, whole: bool) -> None:
    """Checks of ``moe_combine_rows_backward``."""
    _rows(op, rows)
    _places(op, positions, rows, rows.shape[0], whole)
    _weights(op, "weights", weights, "positions", positions)
    same_kind(op, "grad", grad, rows, "rows")
    wanted = (positions.shape[0], rows.shape[1])
    require(
        grad.dim() == 2 and grad.shape[0] == wanted[0] and grad.shape[1] == wanted[1],
        lambda: f"{op}: grad has shape {tuple(grad.shape)}; needed {wanted}, a row for each token",
    )


def _logits(op: str, logits: Tensor) -> None:
    require(
        logits.dtype in FLOAT_TYPES,
        lambda: f"{op}: logits is {dtype_name(logits)}; needed float32, float16 or bfloat16",
    )
    require(logits.dim() >= 1, lambda: f"{op}: logits has shape (); needed at least one dimension")
    require(
        1 <= logits.shape[-1] <= MOST_EXPERTS,
        lambda: f"{op}: logits has {logits.shape[-1]} experts; needed 1 to {MOST_EXPERTS}",
    )


def ids(op: str, topk_ids: Tensor, experts: int) -> None:
    """Checks of ``moe_positions``, and of every op that takes the choice of experts."""
    require(
        topk_ids.dtype in (torch.int32, torch.int64),
        lambda: f"{op}: topk_ids is {dtype_name(topk_ids)}; needed int32 or int64",
    )
    require(topk_ids.dim() == 2, lambda: f"{op}: topk_ids has shape {tuple(topk_ids.shape)}; needed (tokens, k)")
    require(1 <= experts <= MOST_EXPERTS, lambda: f"{op}: experts is {experts}; needed 1 to {MOST_EXPERTS}")
    require(
        topk_ids.numel() < _MOST_PAIRS,
        lambda: f"{op}: topk_ids has shape {tuple(topk_ids.shape)}; needed fewer than 2^31 elements",
    )


def _rows(op: str, rows: Tensor) -> None:
    require(rows.dtype in FLOAT_TYPES, lambda: f"{op}: rows is {dtype_name(rows)}; needed float32, float16 or bfloat16")
    require(rows.dim() == 2, lambda: f"{op}: rows has shape {tuple(rows.shape)}; needed two dimensions")
    require(rows.shape[1] < _MOST_PAIRS, lambda: f"{op}: rows of {rows.shape[1]} elements; needed fewer than 2^31")


def _places(op: str, positions: Tensor, rows: Tensor, slots: int, whole: bool) -> None:
    require(positions.dtype == torch.int32, lambda: f"{op}: positions is {dtype_name(positions)}; needed int32")
    same_device(op, "positions", positions, rows, "rows")
    require(
        positions.dim() == 2 and positions.shape[1] >= 1,
        lambda: f"{op}: positions has shape {tuple(positions.shape)}; needed (tokens, k) with k of 1 or more",
    )
    require(0 <= slots < _MOST_PAIRS, lambda: f"{op}: {slots} slots; needed 0 to 2^31 - 1")
    require(
        positions.numel() < _MOST_PAIRS,
        lambda: f"{op}: positions has shape {tuple(positions.shape)}; needed fewer than 2^31 elements",
    )
    if whole:
        require(
            positions.numel() == slots,
            lambda: (
                f"{op}: positions has shape {tuple(positions.shape)} and there are {slots} slots; needed one position "
                "for each slot"
            ),
        )


def _weights(op: str, name: str, weights: Tensor, called: str, like: Tensor) -> None:
    require(weights.dtype == torch.float32, lambda: f"{op}: {name} is {dtype_name(weights)}; needed float32")
    same_device(op, name, weights, like, called)
    same_shape(op, name, weights, called, like)
