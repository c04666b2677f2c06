"""Dispatch and combine of the older package, by their names and argument orders, for any number of experts per token.

``s`` tokens of width ``h`` go to ``e`` experts with room for ``c`` tokens each. ``mask`` and ``dest_idx`` are
``(k, s)``. They say whether a token has a ``k``-th place, and which of the ``e * c`` places it is. A place belongs to
one token. The functions have no gradients of their own: the older package calls the backward functions itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from precast.compat.members import kernel

__all__ = [
    "combine_backward",
    "combine_forward",
    "cumsum_sub_one",
    "dispatch_backward",
    "dispatch_forward",
]


_LARGEST = 2**31 - 1


def cumsum_sub_one(mask: Tensor) -> Tensor:
    """The running sum over the first dimension of ``(s, e)`` integers, minus one, in int32."""
    if mask.dim() != 2 or mask.is_floating_point() or mask.is_complex():
        raise ValueError(f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; needed (s, e) integers")
    return torch.cumsum(mask, 0, dtype=torch.int32) - 1


@torch.no_grad()
def dispatch_forward(s: int, ec: int, h: int, batch_tokens: Tensor, mask: Tensor, dest_idx: Tensor) -> Tensor:
    """``(ec, h)``: the row of each token at its places, and zero at the others."""
    positions = _positions(s, mask, dest_idx)
    found: Tensor = kernel("moe_permute_rows")(batch_tokens.reshape(s, h), positions, ec, False)
    return found


@torch.no_grad()
def dispatch_backward(s: int, ec: int, h: int, expert_grad: Tensor, mask: Tensor, dest_idx: Tensor) -> Tensor:
    """``(s, h)``: the sum over the places of each token."""
    positions = _positions(s, mask, dest_idx)
    found: Tensor = kernel("moe_combine_rows")(expert_grad.reshape(ec, h), positions, None, False)
    return found


@torch.no_grad()
def combine_forward(
    s: int, e: int, c: int, h: int, expert_tokens: Tensor, logits: Tensor, mask: Tensor, dest_idx: Tensor
) -> Tensor:
    """``(s, h)``: the rows at the places of each token, weighted by ``logits`` of ``(s, e)``, added up."""
    positions = _positions(s, mask, dest_idx)
    _check_logits(logits, s, e)
    weights = logits.gather(1, _experts(positions, e, c).clamp(max=e - 1)).float()
    found: Tensor = kernel("moe_combine_rows")(expert_tokens.reshape(e * c, h), positions, weights, False)
    return found


@torch.no_grad()
def combine_backward(
    s: int,
    e: int,
    c: int,
    h: int,
    tokens_grad: Tensor,
    expert_tokens: Tensor,
    logits: Tensor,
    mask: Tensor,
    dest_idx: Tensor,
) -> list[Tensor]:
    """The gradients for ``expert_tokens``, ``(e * c, h)``, and for ``logits``."""
    positions = _positions(s, mask, dest_idx)
    _check_logits(logits, s, e)
    experts = _experts(positions, e, c)
    weights = logits.gather(1, experts.clamp(max=e - 1)).float()
    rows, grad = expert_tokens.reshape(e * c, h), tokens_grad.reshape(s, h)
    grad_rows, slopes = kernel("moe_combine_rows_backward")(grad, rows, positions, weights, False)
    grad_logits = logits.new_zeros(s, e + 1).scatter(1, experts, slopes.to(logits.dtype))[:, :e]
    return [grad_rows, grad_logits.contiguous()]


def _positions(s: int, mask: Tensor, dest_idx: Tensor) -> Tensor:
    """``(s, k)`` in int32: the places of each token, and -1 where it has none."""
    if mask.dim() != 2 or mask.shape != dest_idx.shape or mask.shape[1] != s:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} and dest_idx {tuple(dest_idx.shape)}; needed (k, {s}) for both"
        )
    # Clamp first: an index beyond int32 must not wrap around to a valid one.
    return torch.where(mask.t() != 0, dest_idx.t(), -1).clamp(-1, _LARGEST).int().contiguous()


def _check_logits(logits: Tensor, s: int, e: int) -> None:
    if logits.shape != (s, e):
        raise ValueError(f"logits has shape {tuple(logits.shape)}; needed ({s}, {e}), a number for each expert")


def _experts(positions: Tensor, e: int, c: int) -> Tensor:
    """The expert of each place; ``e`` where there is none."""
    return torch.where((positions < 0) | (positions >= e * c), e, positions // max(c, 1)).long()
