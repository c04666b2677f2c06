"""``selective_state_update`` of mamba-ssm for Mamba 2, by its name and arguments, on top of precast's op."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["selective_state_update"]


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """One token of Mamba 2, whose numbers of heads are expanded over each head; those of Mamba 1 are refused."""
    import torch

    from precast import ops

    numbers = {"dt": (dt, 2), "A": (A, 1), "D": (D, 1), "dt_bias": (dt_bias, 1)}
    by_head = {name: _by_head(name, tensor, dim) for name, (tensor, dim) in numbers.items()}
    with torch.no_grad():
        y: Tensor = ops.selective_state_update_(
            *(state, x, by_head["dt"], by_head["A"], B, C, by_head["D"]),
            z=z,
            dt_bias=by_head["dt_bias"],
            dt_softplus=dt_softplus,
            state_indices=state_batch_indices,
        )
    return y


def _by_head(name: str, tensor: Tensor | None, dim: int) -> Tensor | None:
    """The number of each head, of a tensor that repeats it in the dimensions from ``dim`` on."""
    if tensor is None:
        return None
    for size, step in zip(tensor.shape[dim:], tensor.stride()[dim:], strict=True):
        if size > 1 and step != 0:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}; needed one number for each "
                "head, expanded, as Mamba 2 has"
            )
    while tensor.dim() > dim:
        tensor = tensor[..., 0]
    return tensor
