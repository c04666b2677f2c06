"""``RMSNorm`` and ``LayerNorm`` as replacements for torch's: the same arguments, parameters and ``state_dict``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from precast.ops.layer_norm import layer_norm
from precast.ops.rms_norm import rms_norm

# Torch's eps if none is given. It is that of float32 for every input dtype, because the arithmetic is float32.
_DEFAULT_EPS = torch.finfo(torch.float32).eps


class LayerNorm(torch.nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` over the last dimension, computed by :func:`precast.ops.layer_norm`.

    If the parameters have another dtype than the input (as under ``torch.autocast``), the wider one is used. The
    result is rounded to the dtype of the input.

    Args:
        normalized_shape: the size of the last dimension, as a number or a sequence of one.
        eps: added to the variance; 0 or more.
        elementwise_affine: whether there is a weight.
        bias: whether a weight comes with a bias.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: ``normalized_shape`` has more than one number.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        norm = precast.nn.LayerNorm(64)
        y = norm(torch.randn(8, 64))
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = [_last_dimension("LayerNorm", normalized_shape)]
        super().__init__(shape, eps, elementwise_affine, bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, which callers may use
        """The norm of ``input``, ``(..., normalized_shape)``, in its dtype."""
        _check_width("LayerNorm", input, self.normalized_shape[0])
        weight, bias = _given(self.weight), _given(self.bias)  # both, neither, or only a weight
        if weight is None or weight.dtype == input.dtype:
            return layer_norm(input, weight, bias, self.eps)
        wide = torch.promote_types(input.dtype, weight.dtype)
        y = layer_norm(input.to(wide), weight.to(wide), None if bias is None else bias.to(wide), self.eps)
        return y.to(input.dtype)


class RMSNorm(torch.nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` over the last dimension, computed by :func:`precast.ops.rms_norm`.

    Mixed dtypes are treated as in :class:`LayerNorm`.

    Args:
        normalized_shape: the size of the last dimension, as a number or a sequence of one.
        eps: added to the mean square; None: that of float32.
        elementwise_affine: whether there is a weight.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: ``normalized_shape`` has more than one number.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        norm = precast.nn.RMSNorm(64)
        y = norm(torch.randn(8, 64))
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = [_last_dimension("RMSNorm", normalized_shape)]
        super().__init__(shape, eps, elementwise_affine, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x``, ``(..., normalized_shape)``, in its dtype."""
        _check_width("RMSNorm", x, self.normalized_shape[0])
        eps = _DEFAULT_EPS if self.eps is None else self.eps
        given = _given(self.weight)
        weight = x.new_ones(x.shape[-1]) if given is None else given
        if weight.dtype == x.dtype:
            return rms_norm(x, weight, eps)
        wide = torch.promote_types(x.dtype, weight.dtype)
        return rms_norm(x.to(wide), weight.to(wide), eps).to(x.dtype)


def _given(parameter: Tensor | None) -> Tensor | None:
    """A parameter that may be None, whatever torch's annotations say."""
    return parameter


def _last_dimension(module: str, normalized_shape: int | Sequence[int]) -> int:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if len(shape) != 1:
        raise ValueError(f"{module}: normalized_shape is {shape}; needed one number, the size of the last dimension")
    return shape[0]


def _check_width(module: str, x: Tensor, width: int) -> None:
    # Without parameters the ops would take any width.
    if x.dim() == 0 or x.shape[-1] != width:
        raise RuntimeError(f"{module}: the input has shape {tuple(x.shape)}; needed {width} in the last dimension")
