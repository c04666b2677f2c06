"""Statistics of the rows of a float32 tensor: the mean and variance, the extremes, the lower median."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

__all__ = ["extremes", "median", "moments"]

_LIBRARY = torch.library.Library("rowstats", "DEF")
_TAGS = [torch.Tag.pt2_compliant_tag]
for _name in __all__:
    _LIBRARY.define(f"{_name}(Tensor x) -> Tensor", tags=_TAGS)


@torch.library.register_fake("rowstats::moments")
@torch.library.register_fake("rowstats::extremes")
def _pairs(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 2))


@torch.library.register_fake("rowstats::median")
def _one(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1])


torch.ops.load_library(str(Path(__file__).with_name("librowstats.so")))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the population variance over the last dimension."""
    pairs: Tensor = torch.ops.rowstats.moments(x)
    return pairs[..., 0], pairs[..., 1]


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value over the last dimension; NaN where there is one."""
    pairs: Tensor = torch.ops.rowstats.extremes(x)
    return pairs[..., 0], pairs[..., 1]


def median(x: Tensor) -> Tensor:
    """The lower median over the last dimension, as ``torch.median`` gives it."""
    values: Tensor = torch.ops.rowstats.median(x)
    return values
