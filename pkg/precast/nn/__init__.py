"""Modules around the ops."""

from __future__ import annotations

from precast.nn.softmax import FusedScaleMaskSoftmax

__all__ = ["FusedScaleMaskSoftmax"]
