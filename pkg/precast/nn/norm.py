"""``RMSNorm`` and ``LayerNorm`` as replacements for torch's: the same arguments, parameters and ``state_dict``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from precast.ops._fx import Proxy, recorded
from precast.ops.norm import layer_norm, rms_norm
from precast.ops.norm._shapes import compares_sizes

# Torch's eps if none is given. It is that of float32 for every input dtype, because the arithmetic is float32.
_DEFAULT_EPS = torch.finfo(torch.float32).eps


class LayerNorm(torch.nn.LayerNorm):
    """:class:`torch.nn.LayerNorm`, computed by :func:`precast.ops.layer_norm`.

    Parameters may have another dtype than the input (as under ``torch.autocast``). Arithmetic is in float32, and
    the result has the dtype of the input.

    Args:
        normalized_shape: the sizes of the last dimensions, as a number or a sequence.
        eps: added to the variance; 0 or more.
        elementwise_affine: whether there is a weight.
        bias: whether a weight comes with a bias.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
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
        super().__init__(_sizes(normalized_shape), eps, elementwise_affine, bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, which callers may use
        """The norm of ``input``, ``(..., *normalized_shape)``, in its dtype."""
        return _layer_norm(input, self.weight, self.bias, self.normalized_shape, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """:class:`torch.nn.RMSNorm`, computed by :func:`precast.ops.rms_norm`.

    Mixed dtypes are treated as in :class:`LayerNorm`.

    Args:
        normalized_shape: the sizes of the last dimensions, as a number or a sequence.
        eps: added to the mean square; None: ``torch.finfo(torch.float32).eps``.
        elementwise_affine: whether there is a weight.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
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
        super().__init__(_sizes(normalized_shape), eps, elementwise_affine, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x``, ``(..., *normalized_shape)``, in its dtype."""
        return _rms_norm(x, self.weight, self.normalized_shape, _DEFAULT_EPS if self.eps is None else self.eps)


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...], eps: float) -> Tensor:
    """The forward of the module, which torch.fx records as one call."""
    if isinstance(x, Proxy):
        return recorded(_layer_norm, **locals())  # type: ignore[no-any-return]
    _check_shape("LayerNorm", x, shape)
    # The ops take parameters in the dtype of x, or in float32.
    if weight is not None and weight.dtype != x.dtype:
        weight = weight.float()
    if bias is not None and bias.dtype != x.dtype:
        bias = bias.float()
    return layer_norm(x, weight, bias, eps, normalized_shape=shape if len(shape) > 1 else None)


def _rms_norm(x: Tensor, weight: Tensor | None, shape: tuple[int, ...], eps: float) -> Tensor:
    """As above."""
    if isinstance(x, Proxy):
        return recorded(_rms_norm, **locals())  # type: ignore[no-any-return]
    _check_shape("RMSNorm", x, shape)
    if weight is not None and weight.dtype != x.dtype:
        weight = weight.float()
    return rms_norm(x, weight, eps, normalized_shape=shape if len(shape) > 1 else None)


def _sizes(normalized_shape: int | Sequence[int]) -> list[int]:
    return [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)


def _check_shape(module: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{module}: the input is a {type(x).__name__}; needed a torch.Tensor")
    # Without parameters the ops would take any width.
    if compares_sizes() and not _is_strided_nested(x) and x.shape[-len(shape) :] != shape:
        wanted = shape[0] if len(shape) == 1 else shape
        raise RuntimeError(
            f"{module}: the input has shape {tuple(x.shape)}; needed {wanted} in the last "
            f"dimension{'s' if len(shape) > 1 else ''}"
        )


def _is_strided_nested(x: Tensor) -> bool:
    """Whether ``x`` has no shape. The op refuses it."""
    return x.is_nested and x.layout is torch.strided
