"""Modules that use the package's kernels. The norms replace those of ``torch.nn``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.nn.norm import LayerNorm, RMSNorm
from precast.nn.softmax import FusedScaleMaskSoftmax

if TYPE_CHECKING:
    from precast.nn.image import FusedLeakyReLU
    from precast.nn.paged_kv_cache import PagedKVCache

_LATE = {"FusedLeakyReLU": "image", "PagedKVCache": "paged_kv_cache"}

__all__ = ["FusedLeakyReLU", "FusedScaleMaskSoftmax", "LayerNorm", "PagedKVCache", "RMSNorm"]


def __getattr__(name: str) -> Any:
    """Imports some modules on first use to keep the import of the others fast."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"precast.nn.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
