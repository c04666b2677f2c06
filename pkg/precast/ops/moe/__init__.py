"""Mixture of experts: choose experts for tokens, move rows to the experts, and combine their results.

A router computes ``logits`` with a score for each token and expert. :func:`topk_softmax` and :func:`topk_sigmoid`
choose ``k`` experts for each token and weight them. :func:`moe_permute` sorts the rows of the tokens by expert, so that
each expert finds its rows in one range. :func:`moe_unpermute` adds the weighted results up, token by token::

    weights, ids = precast.ops.topk_softmax(x @ router, 2, renormalize=True)
    rows, positions, ends = precast.ops.moe_permute(x, ids, experts)
    y = precast.ops.moe_unpermute(run_experts(rows, ends), positions, weights)

:func:`moe_align_block_size` serves kernels that process blocks of slots with one expert each, as vLLM's do.

Every result has the same bits in every run. These functions do not wait for the GPU, and the sizes of results do not
depend on values, so CUDA graphs can capture them. Of equal scores, the expert with the lower index is chosen. Tokens of
an expert keep their order. There may be up to 1024 experts, and fewer than 2^31 pairs of a token and an expert; only
memory limits the width of rows.

**Ids without an expert.** A negative id leaves its pair out: it gets no slot of an expert, its row is zero, and it adds
nothing. An id that is too large raises ``RuntimeError`` on the CPU before anything is written. On a GPU, such an id
counts as negative. The same holds for positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import register
from precast._dispatch.routes import Route, is_compiling
from precast.ops._checks import CONFUSED, explain
from precast.ops._fx import Proxy, recorded
from precast.ops.moe import _checks as checks

GroupScore: TypeAlias = Literal["top2", "max"]

_TOP_TWO: dict[str, bool] = {"top2": True, "max": False}


def topk_softmax(
    logits: Tensor,
    k: int,
    *,
    renormalize: bool = False,
    bias: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: GroupScore = "top2",
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Choose the ``k`` best experts of each token and weight them by a softmax. Differentiable for ``logits``.

    With ``renormalize`` the weights of a token add up to ``scale``, as in Qwen3 (softmax, top-k, division) and gpt-oss
    (top-k, softmax), which are equal. Without ``renormalize``, the weights are the chosen experts' shares in a softmax
    over all experts, as in DeepSeek-V2.

    Args:
        logits: ``(..., experts)`` with up to 1024 experts; float32, float16 or bfloat16.
        k: number of experts for each token.
        renormalize: divide the weights of a token by their sum.
        bias: ``(experts,)``, float32; added to the scores for the choice only, not to the weights.
        groups: the experts form this many groups of neighbours. A divisor of the number of experts.
        kept_groups: experts are chosen from this many groups, those with the best score.
        group_score: the score of a group: ``"top2"``, the sum of its two best scores, or ``"max"``, its best.
        scale: factor of the weights.

    Returns:
        The weights, ``(..., k)`` in float32, and the ids of the experts, ``(..., k)`` in int32, best first.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device; ``k`` is 0 or more than the kept groups have;
            ``groups`` or ``kept_groups`` do not fit.
        ValueError: ``group_score`` is neither of the two.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        logits = torch.randn(4, 128)
        weights, ids = precast.ops.topk_softmax(logits, 8, renormalize=True)
    """
    if isinstance(logits, Proxy):
        return recorded(topk_softmax, **locals())  # type: ignore[no-any-return]
    try:
        args = (k, groups, kept_groups, _top_two(group_score), False, renormalize, scale)
        found: tuple[Tensor, Tensor] = _gating(logits, bias, *args)
    except CONFUSED:
        explain(topk_softmax, locals())
    return found


def topk_sigmoid(
    logits: Tensor,
    k: int,
    *,
    renormalize: bool = False,
    bias: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: GroupScore = "top2",
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Choose the ``k`` best experts of each token and weight them by a sigmoid. Differentiable for ``logits``.

    This is the gating of DeepSeek-V3: ``bias`` is its correction bias, ``groups`` its ``n_group``, ``kept_groups`` its
    ``topk_group`` and ``scale`` its routed scaling factor. The groups and the experts are chosen by ``sigmoid(logits) +
    bias``; the weights are ``sigmoid(logits)``, with ``renormalize`` divided by their sum plus 1e-20.

    Args:
        logits: ``(..., experts)`` with up to 1024 experts; float32, float16 or bfloat16.
        k: number of experts for each token.
        renormalize: divide the weights of a token by their sum.
        bias: ``(experts,)``, float32; added to the scores for the choice only, not to the weights.
        groups: the experts form this many groups of neighbours. A divisor of the number of experts.
        kept_groups: experts are chosen from this many groups, those with the best score.
        group_score: the score of a group: ``"top2"``, the sum of its two best scores, or ``"max"``, its best.
        scale: factor of the weights.

    Returns:
        The weights, ``(..., k)`` in float32, and the ids of the experts, ``(..., k)`` in int32, best first.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device; ``k`` is 0 or more than the kept groups have;
            ``groups`` or ``kept_groups`` do not fit.
        ValueError: ``group_score`` is neither of the two.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        logits, bias = torch.randn(4, 256), torch.zeros(256)
        weights, ids = precast.ops.topk_sigmoid(
            logits, 8, bias=bias, groups=8, kept_groups=4, renormalize=True, scale=2.5
        )
    """
    if isinstance(logits, Proxy):
        return recorded(topk_sigmoid, **locals())  # type: ignore[no-any-return]
    try:
        args = (k, groups, kept_groups, _top_two(group_score), True, renormalize, scale)
        found: tuple[Tensor, Tensor] = _gating(logits, bias, *args)
    except CONFUSED:
        explain(topk_sigmoid, locals())
    return found


def moe_align_block_size(topk_ids: Tensor, experts: int, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort token-expert pairs by expert, and pad the slots of each expert to whole blocks.

    Pair ``token * k + j`` is the ``j``-th expert of a token. The results are those of vLLM's function of this name: all
    slots of a block belong to one expert.

    Args:
        topk_ids: ``(tokens, k)``, int32 or int64; pairs with a negative id are ignored.
        experts: number of experts, up to 1024.
        block_size: slots in a block, 1 or more.

    Returns:
        Three int32 tensors. ``sorted_token_ids`` has the pair in each slot; an empty slot has the number of
        pairs. ``expert_ids`` has the expert of each block, and 0 after the last. ``num_tokens_post_padded`` has one
        number: the slots in use. The first has ``pairs + min(pairs, experts) * (block_size - 1)`` slots, the most that
        can be in use.

    Raises:
        RuntimeError: ``topk_ids`` has another shape or dtype, or an expert that does not exist (CPU); ``experts`` or
            ``block_size`` is out of range.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        ids = torch.tensor([[0, 2], [2, 1]])
        sorted_ids, expert_ids, total = precast.ops.moe_align_block_size(ids, 3, 4)
    """
    try:
        found: tuple[Tensor, Tensor, Tensor] = _align(topk_ids, experts, block_size)
    except CONFUSED:
        explain(moe_align_block_size, locals())
    return found


def moe_permute(
    rows: Tensor, topk_ids: Tensor, experts: int, *, align_block_size: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Copy the row of each token once per chosen expert, sorted by expert, then by token. Differentiable for ``rows``.

    Args:
        rows: ``(tokens, width)``; float32, float16 or bfloat16.
        topk_ids: ``(tokens, k)``, int32 or int64; pairs with a negative id are ignored.
        experts: number of experts, up to 1024.
        align_block_size: pad the rows of each expert with zeros to a multiple of this number. This takes a few
            additional small launches.

    Returns:
        ``(sorted, positions, ends)``. ``sorted`` is ``(tokens * k, width)``, or with ``align_block_size`` as many rows
        as may be needed, a multiple of it; rows of pairs that are left out come last and are zero. ``positions``,
        ``(tokens, k)`` in int32, has the row of each pair, and ``-1 - row`` for a pair that is left out. ``ends``,
        ``(experts,)`` in int32, has the end of each expert's rows, those that fill up included, as grouped matrix
        products take them (``torch._grouped_mm``).

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, there is no such expert (CPU), or
            ``align_block_size`` is below 1 or needs 2^31 rows.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, ids = torch.randn(2, 8), torch.tensor([[0, 2], [2, 1]])
        rows, positions, ends = precast.ops.moe_permute(x, ids, 3)
    """
    if isinstance(rows, Proxy):
        return recorded(moe_permute, **locals())  # type: ignore[no-any-return]
    try:
        pairs = topk_ids.numel()
        few = pairs <= checks.FEW_PAIRS and rows.shape[0] * pairs <= checks.FEW_COUNTED
        if rows.is_cuda and align_block_size is None and few:
            permuted, positions, ends = _permute_few(rows, topk_ids, experts)  # one launch instead of two
        else:
            positions, ends = _positions(topk_ids, experts)
            if align_block_size is not None:
                slots = checks.aligned_slots(topk_ids, experts, align_block_size)
                positions, ends = _aligned(topk_ids, positions, ends, align_block_size)
                return _permute(rows, positions, slots, False), positions, ends
            permuted = _permute(rows, positions, topk_ids.numel(), True)
        if not is_compiling() and not positions.is_inference():
            positions._precast_places = positions._version
    except CONFUSED:
        explain(moe_permute, locals())
    return permuted, positions, ends


def _aligned(topk_ids: Tensor, positions: Tensor, ends: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Positions and ends after each expert's rows are filled up to a multiple of ``size``."""
    counts = ends.diff(prepend=ends.new_zeros(1))
    filled = (counts + (size - 1)) // size * size
    aligned = filled.cumsum(0, dtype=torch.int32)
    moved = (aligned - filled) - (ends - counts)  # how far the first row of each expert moves
    by_pair = moved[topk_ids.clamp(0, ends.shape[0] - 1).long()]
    # ~(row + n) is ~row - n: rows of pairs that are left out come after the last expert's.
    return torch.where(positions >= 0, positions + by_pair, positions - (aligned[-1] - ends[-1])), aligned


def moe_unpermute(rows: Tensor, positions: Tensor, weights: Tensor | None = None) -> Tensor:
    """Add up the rows of each token, multiplied by its weights. Differentiable for ``rows`` and ``weights``.

    The sum is in float32, in the order of ``positions``, and is rounded once.

    Args:
        rows: ``(slots, width)``; float32, float16 or bfloat16.
        positions: ``(tokens, k)``, int32, the row of each pair, as :func:`moe_permute` gives them. A negative position
            adds nothing. A row may belong to several pairs, or to none: then its gradient is zero.
        weights: ``(tokens, k)``; another dtype than float32 is converted. None: all weights are 1.

    Returns:
        ``(tokens, width)`` in the dtype of ``rows``.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device, or there is no such row (CPU).
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        x, ids = torch.randn(2, 8), torch.tensor([[0, 2], [2, 1]])
        rows, positions, ends = precast.ops.moe_permute(x, ids, 3)
        y = precast.ops.moe_unpermute(rows, positions, torch.full((2, 2), 0.5))
    """
    if isinstance(rows, Proxy):
        return recorded(moe_unpermute, **locals())  # type: ignore[no-any-return]
    try:
        if weights is not None and weights.dtype in (torch.float16, torch.bfloat16):
            weights = weights.float()
        y: Tensor = _combine(rows, positions, weights, _have_each_row(positions, rows))
    except CONFUSED:
        explain(moe_unpermute, locals())
    return y


def _have_each_row(positions: Tensor, rows: Tensor) -> bool:
    """Whether each row is known to have one position: those of ``moe_permute``, if nobody has changed them since."""
    if is_compiling():
        return False
    version: int | None = getattr(positions, "_precast_places", None)
    return version is not None and version == positions._version and positions.numel() == rows.shape[0]


def _top_two(group_score: str) -> bool:
    try:
        return _TOP_TWO[group_score]
    except KeyError:
        names = ", ".join(map(repr, _TOP_TWO))
        raise ValueError(f"group_score is {group_score!r}; needed one of {names}") from None


# ---- gradients ----


class _Gating(torch.autograd.Function):
    """``compute`` calls the kernel below autograd; it depends on where the call came from."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Any], logits: Tensor, bias: Tensor | None, *args: Any) -> Any:
        weights, ids = compute(logits, bias, *args)
        ctx.save_for_backward(logits, ids)
        ctx.args = args[-3:]
        ctx.count = len(args)
        ctx.mark_non_differentiable(ids)
        return weights, ids

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
        logits, ids = ctx.saved_tensors
        grad_logits = TOPK_GATING_BACKWARD(grad, logits, ids, *ctx.args) if ctx.needs_input_grad[1] else None
        return None, grad_logits, *[None] * (1 + ctx.count)


class _Permute(torch.autograd.Function):
    """The gradient of a token's row is the sum over the row's places among the sorted rows."""

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Tensor], rows: Tensor, positions: Tensor, slots: int, whole: bool
    ) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.whole = whole
        return compute(rows, positions, slots, whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (positions,) = ctx.saved_tensors
        return None, COMBINE_ROWS(grad, positions, None, ctx.whole), None, None, None


class _PermuteFew(torch.autograd.Function):
    """As :class:`_Permute`, but the forward also returns the places."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Any], rows: Tensor, topk_ids: Tensor, experts: int) -> Any:
        result, positions, ends = compute(rows, topk_ids, experts)
        ctx.save_for_backward(positions)
        ctx.mark_non_differentiable(positions, ends)
        return result, positions, ends

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        (positions,) = ctx.saved_tensors
        return None, COMBINE_ROWS(grad, positions, None, True), None, None


class _Combine(torch.autograd.Function):
    """Without weights, the gradient goes to the places unchanged."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Tensor],
        rows: Tensor,
        positions: Tensor,
        weights: Tensor | None,
        whole: bool,
    ) -> Tensor:
        ctx.save_for_backward(positions, *(() if weights is None else (weights, rows)))
        result = compute(rows, positions, weights, whole)
        ctx.slots, ctx.whole = rows.shape[0], whole
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        positions, *others = ctx.saved_tensors
        if not others:
            return None, PERMUTE_ROWS(grad, positions, ctx.slots, ctx.whole), None, None, None
        weights, rows = others
        grad_rows, grad_weights = COMBINE_ROWS_BACKWARD(grad, rows, positions, weights, ctx.whole)
        return None, grad_rows, None, grad_weights, None


with namespace.family("moe_routing", __package__):
    TOPK_GATING = register(
        "topk_gating",
        check=checks.gating,
        result=lambda logits, k: (
            logits.new_empty((*logits.shape[:-1], k), dtype=torch.float32),
            logits.new_empty((*logits.shape[:-1], k), dtype=torch.int32),
        ),
        gradient=_Gating.apply,
    )
    TOPK_GATING_BACKWARD = register(
        "topk_gating_backward",
        check=checks.gating_backward,
        result="logits",
    )
    MOE_ALIGN_BLOCK_SIZE = register(
        "moe_align_block_size",
        check=checks.align,
        result=checks.align_result,
    )
    MOE_POSITIONS = register(
        "moe_positions",
        check=checks.ids,
        result=lambda topk_ids, experts: (
            topk_ids.new_empty(topk_ids.shape, dtype=torch.int32),
            topk_ids.new_empty((experts,), dtype=torch.int32),
        ),
    )

with namespace.family("moe", __package__):
    PERMUTE_FEW = register(
        "moe_permute_few",
        check=checks.permute_few,
        result=lambda rows, topk_ids, experts: (
            rows.new_empty((topk_ids.numel(), rows.shape[1])),
            topk_ids.new_empty(topk_ids.shape, dtype=torch.int32),
            topk_ids.new_empty((experts,), dtype=torch.int32),
        ),
        gradient=_PermuteFew.apply,
    )
    PERMUTE_ROWS = register(
        "moe_permute_rows",
        check=checks.permute_rows,
        result=lambda rows, slots: rows.new_empty((slots, rows.shape[1])),
        gradient=_Permute.apply,
    )
    COMBINE_ROWS = register(
        "moe_combine_rows",
        check=checks.combine_rows,
        result=lambda rows, positions: rows.new_empty((positions.shape[0], rows.shape[1])),
        gradient=_Combine.apply,
    )
    COMBINE_ROWS_BACKWARD = register(
        "moe_combine_rows_backward",
        check=checks.combine_rows_backward,
        result=lambda rows, weights: (rows.new_empty(rows.shape), weights.new_empty(weights.shape)),
    )


_gating = Route(TOPK_GATING, _Gating)
_align = Route(MOE_ALIGN_BLOCK_SIZE)
_positions = Route(MOE_POSITIONS)
_permute_few = Route(PERMUTE_FEW, _PermuteFew)
_permute = Route(PERMUTE_ROWS, _Permute)
_combine = Route(COMBINE_ROWS, _Combine)
