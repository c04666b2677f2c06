"""Edit distances of batches of sequences.

The schema and the shape are said here, in Python, and the kernel is in a library: graphs and exported programs know the
op wherever this package is imported, and the library is proved to fit before it is opened.
"""

from __future__ import annotations

import torch
from torch import Tensor

from precast.build import load_library

__all__ = ["edit_distance"]

_LIBRARY = torch.library.Library("edits", "DEF")
_LIBRARY.define(
    "edit_distance(Tensor a, Tensor a_lengths, Tensor b, Tensor b_lengths) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


@torch.library.register_fake("edits::edit_distance")
def _shape(a: Tensor, a_lengths: Tensor, b: Tensor, b_lengths: Tensor) -> Tensor:
    return a.new_empty(a.shape[0])


load_library("edits", "kernels")  # the kernel of the schema above


def edit_distance(a: Tensor, b: Tensor, a_lengths: Tensor | None = None, b_lengths: Tensor | None = None) -> Tensor:
    """The fewest insertions, deletions and substitutions that make each row of ``a`` into the same row of ``b``.

    ``a`` is ``(batch, m)`` and ``b`` ``(batch, n)``, int64; of each row as many are read as the lengths say, or all.
    """
    a_lengths = a.new_full(a.shape[:1], a.shape[-1]) if a_lengths is None else a_lengths
    b_lengths = b.new_full(b.shape[:1], b.shape[-1]) if b_lengths is None else b_lengths
    out: Tensor = torch.ops.edits.edit_distance(a, a_lengths, b, b_lengths)
    return out
