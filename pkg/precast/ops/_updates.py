"""The update rules of the optimizers in plain torch, as in ``csrc/multi_tensor/rules.h``, for both devices.

A rule is a row of ``RULES``, with its inputs and its formula. The references of ``multi_tensor`` and ``cpu_optim`` use
these rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

ADAM, SGD, ADAGRAD, LION, LAMB, LAMB_APPLY = range(6)
MAXIMIZE, DECOUPLED, NESTEROV, ALWAYS_ADAPT, UNCORRECTED, SUMMED = 1, 2, 4, 8, 16, 32  # Flag

Number: TypeAlias = "float | Tensor"
States: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None]"


class Numbers(NamedTuple):
    """The numbers of a group, in the order of the ops' tables."""

    lr: Number
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    extra: float


# Of a gradient with its share of the parameter, the states, the numbers, the step from 1 and the flags: the direction
# of the step, and the new states. A state is None if it is absent.
Formula: TypeAlias = "Callable[[Tensor, States, Numbers, Number, int], tuple[Tensor, States]]"


@dataclass(frozen=True, eq=False)
class Update:
    """A rule, with the facts that ``rules.h`` has."""

    formula: Formula
    least: int = 0  # the states that it needs
    counts: bool = False  # it reads how many steps there were
    averages: bool = False  # beta1 and beta2 are rates of decay, below one


def _adam(
    g: Tensor, states: States, n: Numbers, step: Number, flags: int, weight: float | None = None
) -> tuple[Tensor, States]:
    m, v, greatest = states
    assert m is not None and v is not None  # the checks have seen to it
    m = m * n.beta1 + g * (1.0 - n.beta1 if weight is None else weight)
    v = v * n.beta2 + g.square() * (1.0 - n.beta2)
    greatest = None if greatest is None else torch.maximum(greatest, v)
    left = (1.0, 1.0) if flags & UNCORRECTED else (_correction(n.beta1, step), _correction(n.beta2, step))
    size = v if greatest is None else greatest
    return m / left[0] / ((size / left[1]).sqrt() + n.eps), (m, v, greatest)


def _sgd(g: Tensor, states: States, n: Numbers, step: Number, flags: int) -> tuple[Tensor, States]:
    buffer = states[0]
    if buffer is None:
        return g, states
    m = buffer * n.extra + g * (1.0 - n.beta1)
    m = torch.where(step == 1.0, g, m) if isinstance(step, Tensor) else g if step == 1.0 else m
    return g + n.extra * m if flags & NESTEROV else m, (m, None, None)


def _adagrad(g: Tensor, states: States, n: Numbers, step: Number, flags: int) -> tuple[Tensor, States]:
    assert states[0] is not None
    total = states[0] + g.square()
    return g / (total.sqrt() + n.eps) / (1.0 + (step - 1.0) * n.extra), (total, None, None)


def _lion(g: Tensor, states: States, n: Numbers, step: Number, flags: int) -> tuple[Tensor, States]:
    m = states[0]
    assert m is not None
    between = m * n.beta1 + g * (1.0 - n.beta1)
    return torch.where(between.isnan(), between, between.sign()), (m * n.beta2 + g * (1.0 - n.beta2), None, None)


def _lamb(g: Tensor, states: States, n: Numbers, step: Number, flags: int) -> tuple[Tensor, States]:
    weight = 1.0 if flags & SUMMED else None
    return _adam(g, (*states[:2], None), n, step, flags, weight)  # the third state is the direction


RULES = {
    ADAM: Update(_adam, least=2, counts=True, averages=True),
    SGD: Update(_sgd),
    ADAGRAD: Update(_adagrad, least=1, counts=True),
    LION: Update(_lion, least=1, averages=True),
    LAMB: Update(_lamb, least=3, counts=True, averages=True),
    LAMB_APPLY: Update(_lamb, least=3),  # only the step along LAMB's direction
}
ON_CPU = (ADAM, SGD, ADAGRAD, LION)


def update(
    rule: int, p: Tensor, g: Tensor, states: States, n: Numbers, step: Number, flags: int
) -> tuple[Tensor, States]:
    """The direction of a step, and the new states; nothing is written."""
    l2, decay = (0.0, n.weight_decay) if flags & DECOUPLED else (n.weight_decay, 0.0)
    direction, states = RULES[rule].formula(g + times(l2, p), states, n, step, flags)
    if rule != LAMB:
        return direction, states
    direction = direction + times(decay, p)
    return direction, (*states[:2], direction)


def along(p: Tensor, direction: Tensor, n: Numbers, flags: int) -> Tensor:
    """What a step subtracts from the parameter."""
    return n.lr * direction + times(n.lr * n.weight_decay if flags & DECOUPLED else 0.0, p)


def times(number: Number, p: Tensor) -> Number:
    """The product, or 0 if the number is: without decay an infinite parameter stays what it is."""
    if isinstance(number, Tensor):
        return torch.where(number != 0.0, number * p, 0.0)
    return number * p if number else 0.0


def _correction(beta: float, step: Number) -> Number:
    """``1 - beta**step``; for a tensor without a difference that would lose digits."""
    if isinstance(step, Tensor):
        return -torch.expm1(step * math.log1p(beta - 1.0)) if beta > 0.0 else torch.ones_like(step)
    return float(1.0 - beta**step)
