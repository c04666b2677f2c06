"""The state-space ops in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu
from torch.nn.functional import softplus as softplus_of

from precast.ops._reference import wide


def selective_state_update_(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    state_indices: Tensor | None,
    softplus: bool,
) -> Tensor:
    """One token; a sequence with an index out of range is left out, with zeros as the result."""
    slots = torch.arange(len(x), device=x.device) if state_indices is None else state_indices.long()
    kept = (slots >= 0) & (slots < len(state))
    step = wide(dt)[kept] + (0 if dt_bias is None else wide(dt_bias))
    step = softplus_of(step) if softplus else step
    each = x.shape[1] // b.shape[1]
    into, out = (wide(one)[kept].repeat_interleave(each, 1)[:, :, None] for one in (b, c))
    numbers = wide(x)[kept]
    decay = torch.exp(step * wide(a))[..., None, None]
    new = wide(state)[slots[kept]] * decay + (step[..., None] * numbers)[..., None] * into
    state[slots[kept]] = new.to(state.dtype)
    result = (new * out).sum(-1)
    if d is not None:
        result = result + wide(d)[:, None] * numbers
    if z is not None:
        result = result * silu(wide(z)[kept])
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    y[kept] = result.to(x.dtype)
    return y
