"""Lion and LAMB as their authors have them, in plain torch, which has neither."""

from __future__ import annotations

from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023."""

    def __init__(self, params: Any, lr: float, betas: Any, weight_decay: float, maximize: bool = False) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.mul(beta1).add(g, alpha=1 - beta1).sign_(), alpha=-group["lr"])
                m.mul_(beta2).add_(g, alpha=1 - beta2)


class Lamb(torch.optim.Optimizer):
    """You et al., 2020, without clipping; a parameter without weight decay takes the plain step."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (beta1, beta2), decay = group["betas"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                m, v = state["exp_avg"], state["exp_avg_sq"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                state["step"] += 1
                corrected = v / (1 - beta2 ** state["step"])
                u = (m / (1 - beta1 ** state["step"])) / (corrected.sqrt() + group["eps"]) + decay * p
                size, length = float(p.norm()), float(u.norm())
                p.add_(u, alpha=-group["lr"] * (size / length if decay and size > 0 and length > 0 else 1.0))
