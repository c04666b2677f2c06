"""Lets both norms take several normalised dimensions, and jagged nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def over_several(
    op: str,
    call: Callable[..., Any],
    rows: Sequence[Tensor],
    shape: int | Sequence[int],
    columns: Sequence[Tensor | None],
) -> Any:
    """The results of ``call(*rows, *columns)`` with the dimensions of ``shape`` merged, in the shape of the rows."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    x = rows[0]
    if compares_sizes():
        _check_shapes(op, x, shape, columns)
    if len(shape) == 1:
        return call(*rows, *columns)
    merged = call(
        *(row.flatten(-len(shape)) for row in rows),
        *(None if column is None else column.flatten() for column in columns),
    )
    if isinstance(merged, Tensor):
        return merged.view(x.shape)
    return tuple(result.view(x.shape) for result in merged)


def is_exporting_onnx() -> bool:
    """Whether an exporter of torch.onnx records this call, which knows only torch's own ops; False in torch.compile."""
    recorded = torch.compiler.is_compiling() or torch._C._is_tracing()  # the question below imports the exporters
    return recorded and torch.onnx.is_in_onnx_export()


def compares_sizes() -> bool:
    """False under ``torch.jit.trace``, which warns of a comparison of sizes."""
    return torch.compiler.is_compiling() or not torch._C._is_tracing()


def _check_shapes(op: str, x: Tensor, shape: tuple[int, ...], columns: Sequence[Tensor | None]) -> None:
    # Not by torch._check, whose messages torch.compile takes only without tensors.
    if len(shape) == 0 or tuple(x.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"{op}: x has shape {tuple(x.shape)}; needed normalized_shape, {shape}, as its last dimensions"
        )
    for name, column in zip(("weight", "bias"), columns, strict=False):
        if column is not None and tuple(column.shape) != shape:
            raise RuntimeError(f"{op}: {name} has shape {tuple(column.shape)}; needed normalized_shape, {shape}")


def is_jagged(x: Tensor) -> bool:
    return x.is_nested and x.layout == torch.jagged


def over_jagged(op: str, call: Callable[..., Any], rows: Sequence[Tensor], normalized: int) -> Any:
    """The results of ``call(*values)`` for nested tensors of one structure, whose last dimensions are normalised."""
    x: Any = rows[0]
    if x._ragged_idx >= x.dim() - normalized:
        raise RuntimeError(
            f"{op}: dimension {x._ragged_idx} of x is ragged; needed a dimension below "
            f"{x.dim() - normalized}, as the others are normalised"
        )
    for other in rows[1:]:
        if not is_jagged(other) or other.shape != x.shape:
            raise RuntimeError(
                f"{op}: residual has shape {tuple(other.shape)}; needed {tuple(x.shape)}, as x: a nested tensor "
                "made with x.offsets()"
            )
    found = call(*(row.values() for row in rows))

    def nested(values: Tensor) -> Tensor:
        result: Tensor = torch.nested.nested_tensor_from_jagged(values, x.offsets(), x.lengths(), x._ragged_idx)
        return result

    return nested(found) if isinstance(found, Tensor) else tuple(map(nested, found))
