"""A small optimizer on the CPU, step by step, for the tests of what it keeps from one step to the next."""

from __future__ import annotations

from typing import Any

import torch

from precast.optim import CPUAdam

BF16 = torch.bfloat16


class Run:
    """A small optimizer, its gradients and copies.

    ``forgetful``: nothing is known from the step before. ``handed``: gradients are given to the step, in a list.
    """

    def __init__(self, forgetful: bool, handed: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [
            torch.randn(size, generator=generator).requires_grad_() for size in ((5, 7), (33,), (1, 4, 2, 3))
        ]
        self.optimizer: Any = CPUAdam(
            [{"params": self.params[:2]}, {"params": self.params[2:], "amsgrad": True}], lr=1e-2, weight_decay=0.1
        )
        self.copies: Any = None
        self.forgetful, self.handed = forgetful, handed
        self.count = 0

    def step(self) -> None:
        self.count += 1
        for index, param in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            generator = torch.Generator().manual_seed(100 * self.count + index)
            param.grad = torch.randn(param.shape, generator=generator)
        self.again()

    def again(self) -> None:
        if self.forgetful:
            self.optimizer._known = None
        grads = [p.grad for group in self.optimizer.param_groups for p in group["params"]] if self.handed else None
        self.optimizer.step(grads=grads, copies=self.copies)

    def everything(self) -> list[Any]:
        states = [t for values in self.optimizer.state.values() for t in values.values()]
        return [*(p.detach() for p in self.params), *states, *(c for c in self.copies or [] if c is not None)]


def with_copies(run: Run) -> None:
    run.copies = [torch.zeros_like(p, dtype=BF16) for p in run.params]


def with_some_copies(run: Run) -> None:
    run.copies = [None, torch.zeros_like(run.params[1], dtype=BF16), None]
