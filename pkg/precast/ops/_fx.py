"""Calls under ``torch.fx.symbolic_trace``, recorded as calls of the public function, as torch records its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

Proxy: Any = torch.fx.Proxy  # Any, because mypy takes a tensor for no proxy


def recorded(function: Callable[..., Any], **given: Any) -> Any:
    """The node of a call whose arguments have a proxy, alone or in a list."""
    values = [item for value in given.values() for item in (value if isinstance(value, (list, tuple)) else (value,))]
    proxy = next(value for value in values if isinstance(value, Proxy))
    return type(proxy).__torch_function__(function, (type(proxy),), (), given)


def is_traced(tensors: Any) -> bool:
    """Whether a list, or its first tensor, is a proxy."""
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    return isinstance(first, Proxy)
