"""The softmax between the two products of an attention layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from precast.ops._fx import Proxy, recorded
from precast.ops.softmax import FullyMasked, scaled_aligned_causal_softmax, scaled_masked_softmax, scaled_softmax


class FusedScaleMaskSoftmax(torch.nn.Module):
    """Scales scores ``(batch, heads, queries, columns)``, masks them, and computes their softmax, in one pass.

    A mask passed to ``forward`` masks additional columns.

    Args:
        scale: the factor of the scores.
        causal: a query sees the columns up to its own, and the last query sees all.
        masked_value: replaces masked columns, after scaling, as in :func:`precast.ops.scaled_masked_softmax`.
        fully_masked: the result for a row with all columns masked: ``"zero"`` or ``"uniform"``.

    Raises:
        ValueError: ``fully_masked`` is neither of the two; raised by ``forward``.
        precast.errors.KernelError: no kernel can be loaded or built here.

    Example::

        softmax = precast.nn.FusedScaleMaskSoftmax(0.125, causal=True)
        y = softmax(torch.randn(2, 4, 16, 16))
    """

    def __init__(
        self,
        scale: float = 1.0,
        *,
        causal: bool = False,
        masked_value: float | Literal["-inf"] = "-inf",
        fully_masked: FullyMasked = "zero",
    ) -> None:
        super().__init__()
        self.scale = scale
        self.causal = causal
        self.masked_value = masked_value
        self.fully_masked = fully_masked

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The softmax of ``scale * x``. ``mask`` is bool or uint8, nonzero where masked, and can be broadcast."""
        if mask is None and not isinstance(x, Proxy):
            return scaled_aligned_causal_softmax(x, self.scale) if self.causal else scaled_softmax(x, self.scale)
        return _softmax(x, mask, self.scale, self.causal, self.masked_value, self.fully_masked)

    def extra_repr(self) -> str:
        """The settings, for ``print(module)``."""
        return (
            f"scale={self.scale}, causal={self.causal}, masked_value={self.masked_value!r}, "
            f"fully_masked={self.fully_masked!r}"
        )


def _softmax(
    x: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    masked_value: float | Literal["-inf"],
    fully_masked: FullyMasked,
) -> Tensor:
    """The forward of the module, which torch.fx records as one call."""
    if isinstance(x, Proxy):
        return recorded(_softmax, **locals())  # type: ignore[no-any-return]
    if mask is None:
        return scaled_aligned_causal_softmax(x, scale) if causal else scaled_softmax(x, scale)
    if causal:
        queries, columns = x.shape[-2:]
        behind = torch.ones(queries, columns, dtype=torch.bool, device=x.device).triu(columns - queries + 1)
        mask = (mask != 0) | behind
    return scaled_masked_softmax(x, mask, scale, masked_value=masked_value, fully_masked=fully_masked)
