"""The activation module of image generators, which learns a bias."""

from __future__ import annotations

import torch
from torch import Tensor

from precast.ops.image._bias_act import fused_leaky_relu


class FusedLeakyReLU(torch.nn.Module):
    """``leaky_relu(x + bias, negative_slope) * scale`` in one pass, with a learned bias for each channel.

    Args:
        channel: the size of dimension 1 of ``x``.
        bias: learn a bias, which begins at zero.
        negative_slope: the slope below zero.
        scale: multiplies the result.
        device: where the bias is created.
        dtype: its dtype; float32 serves a narrower ``x`` as well.

    Raises:
        RuntimeError: ``x`` has another number of channels, dtype or device; raised by ``forward``.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        activation = precast.nn.FusedLeakyReLU(8)
        y = activation(torch.randn(2, 8, 16, 16))
    """

    def __init__(
        self,
        channel: int,
        bias: bool = True,
        negative_slope: float = 0.2,
        scale: float = 2**0.5,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(channel, device=device, dtype=dtype)) if bias else None
        self.negative_slope = negative_slope
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """The activation of ``(batch, channel, ...)``."""
        return fused_leaky_relu(input, self.bias, self.negative_slope, self.scale)

    def extra_repr(self) -> str:
        """The settings, for ``print(module)``."""
        channel = None if self.bias is None else self.bias.shape[0]
        return f"channel={channel}, negative_slope={self.negative_slope}, scale={self.scale:.4g}"
