"""The norms of DeepSpeed's inference module, ``InferenceBuilder().load()``, on top of precast's ops. For inference.

Results have the dtype of ``gamma``. What is added before a layer norm is added in float32 by torch's ops and not
rounded on the way; ``bias`` has one number for each column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["layer_norm", "layer_norm_residual_store_pre_ln_res", "pre_rms_norm", "rms_norm"]


def layer_norm(input: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:  # noqa: A002 - a name to keep
    """The layer norm over the last dimension."""
    import torch

    from precast.ops.norm import layer_norm as norm

    with torch.no_grad():
        if input.dtype == gamma.dtype == beta.dtype:
            return norm(input, gamma, beta, epsilon)
        return norm(input.float(), gamma.float(), beta.float(), epsilon).to(gamma.dtype)


def _layer_norm_residual(
    input: Tensor,  # noqa: A002 - a name to keep
    bias: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
) -> Tensor:
    """The layer norm of ``input + bias + residual``."""
    return layer_norm_residual_store_pre_ln_res(input, bias, residual, gamma, beta, epsilon)[0]


def layer_norm_residual_store_pre_ln_res(
    input: Tensor,  # noqa: A002 - a name to keep
    bias: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
) -> list[Tensor]:
    """The layer norm of ``input + bias + residual``, and the sum."""
    import torch

    with torch.no_grad():
        total = input.float() + bias.float() + residual.float()
    return [layer_norm(total, gamma, beta, epsilon), total.to(gamma.dtype)]


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float) -> Tensor:  # noqa: A002 - a name to keep
    """The RMS norm over the last dimension, rounded before the product with ``gamma``."""
    import torch

    from precast.ops.norm import rms_norm as norm

    with torch.no_grad():
        return norm(input, gamma, epsilon, casting="llama")


def pre_rms_norm(input: Tensor, residual: Tensor, gamma: Tensor, epsilon: float) -> list[Tensor]:  # noqa: A002
    """The RMS norm of ``input + residual``, and the sum; the sum is rounded first."""
    import torch

    from precast.ops.norm import fused_add_rms_norm

    with torch.no_grad():
        return list(fused_add_rms_norm(input, residual, gamma, epsilon, casting="llama"))
