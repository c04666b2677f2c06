"""The optimizer classes of the older package, written from what they do, over the functions that a loader gives.

They call as it calls: parameters of a group by dtype, ``multi_tensor_applier``, one integer as the flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

CHUNK = 2048 * 32


def multi_tensor_applier(function: Callable[..., Any], noop_flag: Any, lists: Any, *args: Any) -> Any:
    return function(CHUNK, noop_flag, lists, *args)


class _Optimizer(torch.optim.Optimizer):
    """Groups with a common step count, and the gradients, parameters and states of a group by dtype."""

    def __init__(self, params: Any, functions: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.functions = functions
        self.flag = torch.zeros(1, dtype=torch.int32, device=self.param_groups[0]["params"][0].device)

    def lists_of(self, group: Any, *states: str) -> list[list[list[Any]]]:
        found: dict[Any, list[list[Any]]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            kept = [self.state[p].setdefault(name, torch.zeros_like(p)) for name in states]
            lists = found.setdefault((p.dtype, p.grad.dtype), [[] for _ in range(2 + len(states))])
            for some, tensor in zip(lists, (p.grad.data, p.data, *kept), strict=True):
                some.append(tensor)
        return list(found.values())


class FusedAdam(_Optimizer):
    def __init__(
        self,
        params: Any,
        functions: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        adamw_mode: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        self.adamw_mode = adamw_mode
        options = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, functions, **options, weight_decay=weight_decay)

    def step(self, div_scale: float = -1.0) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for lists in self.lists_of(group, "exp_avg", "exp_avg_sq"):
                multi_tensor_applier(
                    self.functions.multi_tensor_adam,
                    *(self.flag, lists, group["lr"], *group["betas"], group["eps"], group["step"]),
                    *(int(self.adamw_mode), int(group["bias_correction"]), group["weight_decay"], div_scale),
                )


class HybridAdam(FusedAdam):
    """Parameters on the CPU go one by one through ``CPUAdamOptimizer``; the others as those of FusedAdam."""

    def __init__(self, params: Any, functions: Any, cpu_adam: Any, *args: Any, **options: Any) -> None:
        super().__init__(params, functions, *args, **options)
        group = self.param_groups[0]
        numbers = (group["lr"], *group["betas"], group["eps"], group["weight_decay"])
        self.cpu_adam = cpu_adam.CPUAdamOptimizer(*numbers, self.adamw_mode)

    def on_cpu(self, param: Any) -> bool:
        return bool(param.is_cpu)

    def step(self, div_scale: float = -1.0) -> None:  # type: ignore[override]
        whole = [group["params"] for group in self.param_groups]
        try:
            for group, params in zip(self.param_groups, whole, strict=True):
                group["params"] = [p for p in params if not self.on_cpu(p)]
            super().step(div_scale)
        finally:
            for group, params in zip(self.param_groups, whole, strict=True):
                group["params"] = params
        for group in self.param_groups:
            for p in filter(self.on_cpu, group["params"]):
                if p.grad is None:
                    continue
                m, v = (self.state[p].setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
                self.cpu_adam.step(
                    *(group["step"], group["lr"], *group["betas"], group["eps"], group["weight_decay"]),
                    *(group["bias_correction"], p.data, p.grad.data, m, v, div_scale),
                )


class CPUAdam(HybridAdam):
    """Every parameter is on the CPU."""

    def __init__(self, params: Any, cpu_adam: Any, *args: Any, **options: Any) -> None:
        super().__init__(params, None, cpu_adam, *args, **options)

    def on_cpu(self, param: Any) -> bool:
        return True


class FusedSGD(_Optimizer):
    def __init__(
        self,
        params: Any,
        functions: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
    ) -> None:
        self.wd_after_momentum = wd_after_momentum
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, functions, **options, nesterov=nesterov)

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first_run = not any("momentum_buffer" in self.state[p] for p in group["params"])
            for lists in self.lists_of(group, "momentum_buffer"):
                multi_tensor_applier(
                    self.functions.multi_tensor_sgd,
                    *(self.flag, lists, group["weight_decay"], group["momentum"], group["dampening"], group["lr"]),
                    *(group["nesterov"], first_run, self.wd_after_momentum, 1.0),
                )


class FusedLAMB(_Optimizer):
    def __init__(
        self,
        params: Any,
        functions: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        self.adam_w_mode, self.max_grad_norm, self.use_nvlamb = adam_w_mode, max_grad_norm, use_nvlamb
        options = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, functions, **options, weight_decay=weight_decay, grad_averaging=grad_averaging)

    def step(self) -> None:  # type: ignore[override]
        norms = []
        for dtype in {p.grad.dtype for group in self.param_groups for p in group["params"] if p.grad is not None}:
            grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            of_dtype = [grad for grad in grads if grad.dtype == dtype]
            norms.append(multi_tensor_applier(self.functions.multi_tensor_l2norm, self.flag, [of_dtype], False)[0])
        norm = multi_tensor_applier(self.functions.multi_tensor_l2norm, self.flag, [norms], False)[0]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for lists in self.lists_of(group, "exp_avg", "exp_avg_sq"):
                multi_tensor_applier(
                    self.functions.multi_tensor_lamb,
                    *(self.flag, lists, group["lr"], *group["betas"], group["eps"], group["step"]),
                    *(int(group["bias_correction"]), group["weight_decay"], int(group["grad_averaging"])),
                    *(int(self.adam_w_mode), norm, self.max_grad_norm, self.use_nvlamb),
                )
