"""Optimizers over the package's kernels, with the interface of ``torch.optim``."""

from __future__ import annotations

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.optim.cpu_adam import CPUAdam, CPUAdamOptimizer
from precast.optim.fused_adam import FusedAdam, FusedAdamW
from precast.optim.fused_others import FusedAdagrad, FusedLAMB, FusedLion, FusedSGD

__all__ = [
    "CPUAdam",
    "CPUAdamOptimizer",
    "FusedAdagrad",
    "FusedAdam",
    "FusedAdamW",
    "FusedLAMB",
    "FusedLion",
    "FusedSGD",
]
