"""A small numeric check for every op: the loaded kernel in float32 against plain torch in float64.

``precast doctor --deep`` runs this in a child process. It prints a line of JSON before and after each op, so that the
parent can name a kernel that crashes the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precast.compat.members import kernel
from precast.errors import KernelError
from precast.ops import _folders

_RELATIVE, _ABSOLUTE = 1e-4, 1e-5  # float32 over 33 columns; the ops' own tests are far stricter


def check(op: str, device: str, call: Callable[..., Any] | None = None) -> str | None:
    """Call the op and compare its results, or the arguments it changed, with the reference; the error, or None."""
    if _folders.is_planned(op):
        return _check_step(device)
    given = _folders.arguments(op)
    wide = _map(given, lambda t: t.double() if t.is_floating_point() else t)
    here = _map(given, lambda t: t.to(device, copy=True))
    result = (call or kernel(op))(*here)
    right = _folders.reference(op)(*wide)
    got, wanted = _tensors(here if result is None else result), _tensors(wide if right is None else right)
    if len(got) != len(wanted):
        return f"{len(got)} results, needed {len(wanted)}"
    for index, (mine, exact) in enumerate(zip(got, wanted, strict=True)):
        rounding = torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0.0
        relative = max(_RELATIVE, rounding)
        close = torch.isclose(mine.double().cpu(), exact.double(), rtol=relative, atol=_ABSOLUTE, equal_nan=True)
        if not bool(close.all()):
            worst = (mine.double().cpu() - exact).abs().max().item()
            return f"result {index}: {int((~close).sum())} of {close.numel()} values are wrong, by up to {worst:.3g}"
    return None


def _check_step(device: str) -> str | None:
    """Check the ops of a plan together: compare two optimizer steps with torch's own optimizer in float64."""
    from precast.optim import CPUAdam, FusedAdamW

    exact = torch.randn(33, generator=torch.Generator().manual_seed(20))
    mine, exact = exact.to(device, copy=True), exact.double()
    ours = CPUAdam if device == "cpu" else FusedAdamW
    steppers = ours([mine], lr=0.1, weight_decay=0.01), torch.optim.AdamW([exact], lr=0.1, weight_decay=0.01)
    for stepper, tensor in zip(steppers, (mine, exact), strict=True):
        for _ in range(2):
            tensor.grad = tensor.detach().cos()
            stepper.step()
    worst = (mine.double().cpu() - exact).abs().max().item()
    return None if worst < _RELATIVE else f"the parameter is wrong by up to {worst:.3g} after two steps"


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_map(item, change) for item in value) if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [found for item in value for found in _tensors(item)] if isinstance(value, list | tuple) else []


def main(pairs: Sequence[str]) -> None:
    """Check each ``op@device``; write JSON lines to stdout: first the pair, then the pair with the result."""
    for pair in pairs:
        op, _, device = pair.partition("@")
        _write({"pair": pair})
        try:
            wrong = check(op, device)
        except (KernelError, RuntimeError) as error:  # torch reports a failed launch as RuntimeError
            wrong = f"{type(error).__name__}: {error}"
        _write({"pair": pair, "wrong": wrong})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
