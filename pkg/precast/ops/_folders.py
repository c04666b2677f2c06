"""Finds the reference and the example arguments of an op in the folder of its family.

``precast doctor --deep`` and the tests use the references and examples to check kernels.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from precast._builder import catalogue

Arguments = tuple[Any, ...]
Some = Callable[..., Tensor]  # makes a normally distributed tensor of the given shape
Examples = Mapping[str, Callable[[Some], Arguments] | None]  # by op; None if the op cannot be called on its own


def part(folder: str, name: str) -> ModuleType:
    """A module of a folder."""
    return importlib.import_module(f"precast.ops.{folder}.{name}")


def arguments(op: str) -> Arguments:
    """Example arguments of one op: always the same numbers, with odd sizes, on the CPU."""
    example = _example(op)
    assert example is not None, f"{op} has no example, as it means nothing by itself"
    random = torch.Generator().manual_seed(20)
    return example(lambda *shape: torch.randn(*shape, generator=random))


def is_planned(op: str) -> bool:
    """Whether an op belongs to an optimizer's plan and so has no example call of its own."""
    return _example(op) is None


def reference(op: str) -> Callable[..., Any]:
    """The same computation in plain torch."""
    found: Callable[..., Any] = getattr(part(catalogue.folder_of(op).name, "reference"), op)
    return found


def _example(op: str) -> Callable[[Some], Arguments] | None:
    try:
        folder = catalogue.folder_of(op).name
        examples: Examples = part(folder, "examples").EXAMPLES
        return examples[op]
    except KeyError as error:
        raise KeyError(f"no example for {op!r}: it needs one in the examples.py of its folder") from error
