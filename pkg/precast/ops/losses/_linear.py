"""Chunks of rows from a linear layer's input to the loss and its gradients, by torch's own matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from precast._dispatch.formulas import means_its_memory
from precast.ops import _checks
from precast.ops._checks import require
from precast.ops._written import check_readable
from precast.ops.losses._ops import (
    CROSS_ENTROPY,
    CROSS_ENTROPY_WITH_GRAD,
    CROSS_ENTROPY_WITH_GRAD_,
    keep,
    needs_slope,
    refuse_second_derivative,
    scale_rows,
    taken,
    times,
)

_OP = "linear_cross_entropy"
_TILE = 128  # rows of a chunk are a multiple, so that the matrix products have whole tiles


def check(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, workspace_mb: int | None) -> None:
    """Raise unless the tensors fit each other; the loss checks ``target`` and the classes' weights."""
    if torch.compiler.is_compiling():
        return  # it cannot trace messages; the ops check what they get
    check_readable(_OP, input=x, linear_weight=weight, target=target, linear_bias=bias)
    require(
        x.dim() >= 1 and weight.dim() == 2 and x.shape[-1] == weight.shape[1] and len(weight) > 0,
        lambda: (
            f"{_OP}: input has shape {tuple(x.shape)} and linear_weight {tuple(weight.shape)}; "
            "needed (..., features) and (classes, features), with at least one class"
        ),
    )
    require(
        target.shape == x.shape[:-1],
        lambda: f"{_OP}: target has shape {tuple(target.shape)}; needed {tuple(x.shape[:-1])}, as input",
    )
    require(
        workspace_mb is None or workspace_mb >= 1, lambda: f"{_OP}: workspace_mb is {workspace_mb}; needed 1 or more"
    )
    autocast = _autocasts(x)
    for name, other in (("linear_weight", weight), ("linear_bias", bias)):
        if other is None:
            continue
        _checks.same_device(_OP, name, other, x, "input")
        if not autocast:
            _checks.same_kind(_OP, name, other, x, "input")
    if bias is not None:
        require(
            bias.shape == weight.shape[:1],
            lambda: f"{_OP}: linear_bias has shape {tuple(bias.shape)}; needed ({weight.shape[0]},)",
        )


def as_autocast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The tensors in the dtype in which autocast runs linear layers."""
    if not _autocasts(x):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(x.device.type)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _autocasts(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def rows_at_once(x: Tensor, weight: Tensor, workspace_mb: int | None, in_float32: bool) -> int:
    """How many of the rows are a chunk."""
    room, row = (256 if workspace_mb is None else workspace_mb) << 20, weight.shape[0] * weight.element_size()
    if workspace_mb is None and in_float32 and weight.requires_grad and torch.is_grad_enabled():
        total = x.numel() // max(x.shape[-1], 1)
        if total * row <= 4 * weight.numel():
            return max(total, 1)  # all logits take no more than the sum in float32, of which one chunk has no need
        room = max(room, weight.numel() * weight.element_size())  # what the result takes once the logits are gone
    rows = room // row
    return int(rows // _TILE * _TILE or max(rows, 1))


class Loss(torch.autograd.Function):
    """The loss of all rows, or of each. The gradients are computed with it, unless they need the slope of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        linear: Tensor,
        bias: Tensor | None,
        target: Tensor,
        weight: Tensor | None,
        factors: Tensor | None,
        ignore_index: int,
        label_smoothing: float,
        z_loss: float,
        rows: int,
        in_float32: bool,
        each: bool,
        recorded: bool,
    ) -> Tensor:
        # torch says what requires grad here even if no gradient is recorded.
        wanted = tuple(recorded and bool(need) for need in ctx.needs_input_grad[:3])
        inputs = (x, linear, bias, target, weight, factors)
        ctx.options, ctx.room, ctx.wanted = (ignore_index, label_smoothing, z_loss), (rows, in_float32), wanted
        late = each or needs_slope(x)
        with torch.no_grad():  # torch.compile of torch 2.5 traces this with gradients on
            losses, *grads = _in_chunks(inputs, ctx.options, ctx.room, (False,) * 3 if late else wanted)
        keep(ctx, inputs, () if late or not any(wanted) else grads)
        return losses if each else losses.sum()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(_OP)
        grads = [None if grad is None else scale_rows(grad, slope) for grad in taken(ctx)]
        if not grads:
            *inputs, factors = ctx.saved_tensors
            inputs.append(times(factors, slope))
            if not torch.compiler.is_compiling() and not means_its_memory(slope):
                grads = _at_once(inputs, ctx.options, ctx.wanted)
            else:
                grads = [*_in_chunks(inputs, ctx.options, ctx.room, ctx.wanted)[1:]]
        return *grads, *(None,) * 10


def _at_once(inputs: Sequence[Any], options: tuple[int, float, float], wanted: Sequence[bool]) -> list[Tensor | None]:
    """The wanted gradients with all logits, in ops that have rules for batched gradients."""
    x, linear, bias, target, weight, factors = inputs
    flat = x.reshape(-1, x.shape[-1])
    logits = torch.nn.functional.linear(flat, linear, bias)
    grad = CROSS_ENTROPY_WITH_GRAD(logits, target.reshape(-1), weight, factors, *options)[2]
    return [
        (grad @ linear).reshape(x.shape) if wanted[0] else None,
        grad.t() @ flat if wanted[1] else None,
        grad.sum(0) if wanted[2] else None,
    ]


def _of_rows(factors: Tensor | None, here: slice, rows: int, sums: int) -> Tensor | None:
    """The factors of a chunk of rows, and the sum of the weights if it follows them."""
    if factors is None or len(factors) != rows + sums:
        return factors
    return torch.cat([factors[here], factors[-1:]]) if sums else factors[here]


def _in_chunks(
    inputs: Sequence[Any],
    options: tuple[int, float, float],
    room: tuple[int, bool],
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The losses, and the wanted ones of the gradients of ``x``, ``linear`` and ``bias``."""
    (x, linear, bias, target, weight, factors), (step, in_float32) = inputs, room
    flat, targets = x.reshape(target.numel(), x.shape[-1]), target.reshape(-1)
    rows, classes = flat.shape[0], linear.shape[0]
    logits = x.new_empty((min(step, rows), classes))
    # Not a view of a flat tensor: torch refuses to write in place to a Function's result that is a view.
    losses = torch.empty(target.shape, dtype=torch.float32, device=x.device)
    of_rows = losses.view(-1)
    of_x = torch.empty_like(flat) if wanted[0] else None
    of_linear = _Sum(linear, rows > step, in_float32) if wanted[1] else None
    of_bias = torch.zeros(classes, dtype=torch.float32, device=x.device) if wanted[2] else None
    found = logits
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        part, found = flat[here], logits[: here.stop - start]
        if bias is None:
            torch.mm(part, linear.t(), out=found)
        else:
            torch.addmm(bias, part, linear.t(), out=found)
        op = CROSS_ENTROPY_WITH_GRAD_ if any(wanted) else CROSS_ENTROPY
        factor = _of_rows(factors, here, rows, 0 if weight is None else 1)
        of_rows[here] = op(found, targets[here], weight, factor, *options)[0]
        if of_x is not None:
            torch.mm(found, linear, out=of_x[here])
        if of_linear is not None:
            of_linear.add(found.t(), part)
        if of_bias is not None:
            of_bias += found.sum(0, dtype=torch.float32)
    del logits, found  # the result below takes their place
    return (
        losses,
        None if of_x is None else of_x.reshape(x.shape),
        None if of_linear is None else of_linear.result(),
        None if of_bias is None or bias is None else of_bias.to(bias.dtype),
    )


class _Sum:
    """A sum of matrix products with the shape and dtype of ``like``, added up in float32 if there are several."""

    def __init__(self, like: Tensor, several: bool, in_float32: bool) -> None:
        self.like = like
        self.total: Tensor | None = None
        self.wide = several and in_float32 and like.dtype != torch.float32
        self.direct = self.wide and like.is_cuda and "dtype_out" in torch.ops.aten.addmm.overloads()  # from torch 2.8

    def add(self, a: Tensor, b: Tensor) -> None:
        if self.total is None:
            self.total = self._first(a, b)
        elif self.direct:
            torch.ops.aten.addmm.dtype_out(self.total, a, b, torch.float32, out=self.total)
        elif self.wide:
            self.total += self._product(a, b)
        else:
            torch.addmm(self.total, a, b, out=self.total)

    def _first(self, a: Tensor, b: Tensor) -> Tensor:
        if self.direct:
            return torch.mm(a, b, out_dtype=torch.float32)
        return self._product(a, b).float() if self.wide else torch.mm(a, b)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        # On the CPU, torch multiplies float16 more slowly than float32, and rounds.
        exact = a.dtype == torch.float16 and not a.is_cuda
        return torch.mm(a.float(), b.float()) if exact else torch.mm(a, b)

    def result(self) -> Tensor:
        return torch.zeros_like(self.like) if self.total is None else self.total.to(self.like.dtype)
