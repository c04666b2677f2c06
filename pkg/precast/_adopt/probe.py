"""The probe: does a kernel round where a module rounds?

Both compute the same random inputs in bfloat16, float16 and float32. What they may differ in is the order of a sum or
the last bit of a root: a relative error of some float32 roundings, 2**-20 at most. An element is **decisive** if no
such error, up or down, changes its 16-bit value in any of the orders of rounding that are candidates; that is computed
in float64. A candidate is exact if all decisive elements of kernel and module have the same bits. The candidates must
differ from each other in at least 32 decisive elements, or else the probe decides nothing. There is no tolerance.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

Outputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """The inputs of one dtype: for a method of the module's twin, with what the kernels make of them, by candidate.

    ``exact`` gives the candidates' values in float64 if the error is a factor.
    """

    twin: Module
    x: Tensor
    kernels: Outputs
    exact: Callable[[float], Outputs]
    method: str = "forward"
    more: tuple[Tensor, ...] = ()  # the method's other arguments


Trials = Callable[[torch.dtype, torch.Generator], Trial]
Probe = Callable[[torch.dtype], tuple[Trial, Tensor]]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ERROR = 2.0**-20
_ENOUGH = 32


class StandIn(Module):
    """Takes the place of a child of a module and returns a value that is given."""

    def __init__(self, value: Tensor | None) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """The value, or the input if there is none."""
        return x if self.value is None else self.value


def twin_of(module: Module, parts: Mapping[str, Tensor | Module]) -> Module:
    """The module without its hooks, with some parameters and children replaced."""
    twin: Any = object.__new__(type(module))
    twin.__dict__ = {name: value for name, value in module.__dict__.items() if name != "forward"}
    twin._parameters = module._parameters | {name: one for name, one in parts.items() if isinstance(one, Tensor)}
    twin._modules = module._modules | {name: one for name, one in parts.items() if isinstance(one, Module)}
    return twin  # type: ignore[no-any-return]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> Tensor:
    """Random numbers from the CPU, so that a probe has the same inputs on every device, whatever the defaults are."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(device, dtype)


def probe(trials: Trials, device: str) -> Probe:
    """The inputs of a dtype, and the elements that no error of a sum or a root changes; made once for each dtype."""

    @functools.cache
    def made(dtype: torch.dtype) -> tuple[Trial, Tensor]:
        with _undisturbed(device):
            trial = trials(dtype, torch.Generator("cpu").manual_seed(0))
            up, down = trial.exact(1 + _ERROR), trial.exact(1 - _ERROR)
            alike = [_bits(up[name], dtype) == _bits(down[name], dtype) for name in trial.kernels]
            return trial, torch.stack(alike).all(0)

    return made


def decide(made: Probe, device: str) -> tuple[str | None, str]:
    """The name of the only exact candidate, or None with the reason."""
    alive: set[str] | None = None
    seen = 0
    for dtype in _DTYPES:
        trial, decisive = made(dtype)
        own = _run(trial, getattr(type(trial.twin), trial.method), device)
        if own.dtype != dtype:
            return None, f"its result for {_short(dtype)} is {_short(own.dtype)}"
        count = int(decisive.sum())
        wrong = {name: _unlike(own, y, decisive, dtype) for name, y in trial.kernels.items()}
        same = {name for name, elements in wrong.items() if elements == 0}
        if not same:
            best = min(wrong, key=lambda name: wrong[name])
            return None, (
                f"it rounds in another order in {_short(dtype)}: {wrong[best]} of {count} decisive elements differ "
                f"from {best}"
            )
        alone = dtype != torch.float32 and len(same) == 1
        if count < _ENOUGH or (alone and any(0 < elements < _ENOUGH for elements in wrong.values())):
            return None, "the probe cannot tell the orders of rounding apart"
        alive = same if alive is None else alive & same
        seen += count
    if alive is None or len(alive) != 1:
        return None, f"the probe cannot tell {' and '.join(sorted(alive or ()))} apart"
    return alive.pop(), f"{seen} decisive elements have the same bits"


def recheck(made: Probe, forward: functools.partial[Any], device: str) -> str:
    """Compare the forward that is bound to a module with the module's own, by the same elements; say what differs."""
    for dtype in _DTYPES:
        trial, decisive = made(dtype)
        own = _run(trial, getattr(type(trial.twin), trial.method), device)
        bound = _run(trial, functools.partial(_as_bound, forward), device)
        elements = _unlike(own, bound, decisive, dtype)
        if elements:
            return f"{elements} of {int(decisive.sum())} decisive elements differ in {_short(dtype)}"
    return ""


def _as_bound(forward: functools.partial[Any], module: Module, *given: Tensor) -> Tensor:
    """The call of a forward that is bound to another module."""
    return forward.func(module, *forward.args[1:], *given)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _undisturbed(device: str) -> Iterator[None]:
    """Without the modes of the caller. The gradient of a loss cannot be had from tensors of the inference mode."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
        yield


def _run(trial: Trial, function: Callable[..., Tensor], device: str) -> Tensor:
    with _undisturbed(device):
        return function(trial.twin, trial.x, *trial.more)


def _unlike(one: Tensor, other: Tensor, decisive: Tensor, dtype: torch.dtype) -> int:
    """How many decisive elements have other bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return int(decisive.sum())
    return int(((_bits(one, dtype) != _bits(other, dtype)) & decisive).sum())


def _bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of a 16-bit dtype; float32, where nothing is rounded on the way, is looked at in bfloat16."""
    return x.to(torch.bfloat16 if dtype == torch.float32 else dtype).contiguous().view(torch.int16)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
