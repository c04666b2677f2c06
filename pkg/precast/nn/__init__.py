"""Modules that use the package's kernels. The norms replace those of ``torch.nn``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.nn.norm import LayerNorm, RMSNorm
from precast.nn.softmax import FusedScaleMaskSoftmax

if TYPE_CHECKING:
    from precast.nn.paged_kv_cache import PagedKVCache

__all__ = ["FusedScaleMaskSoftmax", "LayerNorm", "PagedKVCache", "RMSNorm"]


def __getattr__(name: str) -> Any:
    """Imports PagedKVCache on first use to keep the import of the other modules fast."""
    if name != "PagedKVCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("precast.nn.paged_kv_cache").PagedKVCache


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
