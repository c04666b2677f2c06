"""One small numeric check for every op: the loaded kernel in float32 against plain torch in float64.

``precast doctor --deep`` runs this in a child process, one line of JSON before and one after each op, so that a kernel
which ends its process is named all the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precast._build.catalogue import FAMILIES
from precast._load import namespace
from precast.errors import KernelError
from precast.ops import _reference, _softmax_reference

_EPS = 1e-6
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5  # float32 over 33 columns; the ops' own tests are far stricter
Arguments = tuple[Any, ...]


def arguments(op: str) -> Arguments:
    """What one op is called with: the same numbers every time, odd sizes, on the CPU."""
    random = torch.Generator().manual_seed(20)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    make: dict[str, Callable[[], Arguments]] = {
        "rms_norm": lambda: (some(5, 33), some(33), _EPS, _reference.CASTINGS["none"]),
        "fused_add_rms_norm": lambda: (some(5, 33), some(5, 33), some(33), _EPS, 0),
        "fused_add_rms_norm_": lambda: (some(5, 33), some(5, 33), some(33), _EPS, 0),
        "rms_norm_backward": lambda: (some(5, 33), some(5, 33), some(33), _EPS, 0),
        "fused_add_rms_norm_backward": lambda: (some(5, 33), some(5, 33), some(5, 33), some(33), _EPS, 0),
        "layer_norm": lambda: (some(5, 33), some(33), some(33), _EPS),
        "layer_norm_backward": lambda: (some(5, 33), some(5, 33), some(33), _EPS, True, True),
        "gated_activation": lambda: (some(5, 66), _reference.GatedKind.SILU_AND_MUL),
        "gated_activation_backward": lambda: (some(5, 33), some(5, 66), _reference.GatedKind.GELU_AND_MUL),
        "scaled_softmax": lambda: (some(2, 3, 5, 33), 0.5),
        "scaled_masked_softmax": lambda: (some(2, 3, 5, 33), some(2, 1, 5, 33) > 1, 0.5, -10000.0, True),
        "scaled_upper_triang_masked_softmax": lambda: (some(3, 33, 33), 0.5),
        "scaled_aligned_causal_softmax": lambda: (some(3, 5, 33), 0.5),
        "scaled_softmax_backward": lambda: (some(3, 5, 33), torch.softmax(some(3, 5, 33), -1), 0.5, False),
        "adam_": lambda: (
            *([some(33)], [some(33)], [some(33)], [some(33).abs()], []),
            *(1e-2, 0.9, 0.99, 1e-8, 1e-2, 0.5, 0.5, 1.0, True, False),
        ),
    }
    if op not in make:
        raise KeyError(f"no numeric check for {op!r}")
    return make[op]()


def reference(op: str) -> Callable[..., Any]:
    """The same computation in plain torch."""
    name = "scaled_aligned_causal_softmax" if op == "scaled_upper_triang_masked_softmax" else op  # equal on squares
    found: Callable[..., Any] = getattr(_reference, name, None) or getattr(_softmax_reference, name)
    return found


def check(op: str, device: str, call: Callable[..., Any] | None = None) -> str | None:
    """Calls the op and holds its results, or what it wrote over, against the reference; what is wrong, or None."""
    given = arguments(op)
    wide = _map(given, lambda t: t.double() if t.is_floating_point() else t)
    here = _map(given, lambda t: t.to(device, copy=True))
    result = (call or namespace.overload(op))(*here)
    right = reference(op)(*wide)
    got, wanted = _tensors(here if result is None else result), _tensors(wide if right is None else right)
    if len(got) != len(wanted):
        return f"{len(got)} results, wanted {len(wanted)}"
    for index, (mine, exact) in enumerate(zip(got, wanted, strict=True)):
        close = torch.isclose(mine.double().cpu(), exact.double(), rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
        if not bool(close.all()):
            worst = (mine.double().cpu() - exact).abs().max().item()
            return f"result {index}: {int((~close).sum())} of {close.numel()} values are wrong, by up to {worst:.3g}"
    return None


def ops_of(families: Sequence[str]) -> list[str]:
    """The names of the ops of these families."""
    return [namespace.op_name(schema) for f in FAMILIES if f.name in families for schema in f.ops]


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_map(item, change) for item in value) if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [found for item in value for found in _tensors(item)] if isinstance(value, list | tuple) else []


def main(pairs: Sequence[str]) -> None:
    """Checks each ``op@device`` and writes JSON lines to stdout: the pair, then the pair with what was found."""
    for pair in pairs:
        op, _, device = pair.partition("@")
        _write({"pair": pair})
        try:
            wrong = check(op, device)
        except (KernelError, RuntimeError) as error:  # RuntimeError: what torch makes of a failed launch
            wrong = f"{type(error).__name__}: {error}"
        _write({"pair": pair, "wrong": wrong})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
