"""Functions of the package causal-conv1d 1.7, by their names and arguments, on top of precast's ops.

Filters have 2 to 8 taps here, both orders of memory take every argument, and lengths need no multiple of 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """Convolve ``(batch, dim, seqlen)``; with ``return_final_states``, also return states, in ``final_states_out``."""
    from precast import ops

    options = {"initial_state": initial_states, "sequence_index": seq_idx, "return_final_state": return_final_states}
    found = ops.causal_conv1d(x, weight, bias, activation=activation, **options)
    if not return_final_states or final_states_out is None:
        return found
    return found[0], final_states_out.copy_(found[1])


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """Convolve the next tokens, ``(batch, dim)`` or ``(batch, dim, seqlen)``, and write them to ``conv_state``."""
    import torch

    from precast import ops

    where = {"state_indices": conv_state_indices, "positions": cache_seqlens}
    with torch.no_grad():
        y: Tensor = ops.causal_conv1d_update_(x, conv_state, weight, bias, activation=activation, **where)
    return y
