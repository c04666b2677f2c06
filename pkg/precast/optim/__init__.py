"""Optimizers on top of the package's kernels, with the interface of ``torch.optim``."""

from __future__ import annotations

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.optim import compat  # noqa: F401  # the names of older packages
from precast.optim.cpu_adagrad import CPUAdagrad
from precast.optim.cpu_adam import CPUAdam, CPUAdamOptimizer
from precast.optim.cpu_lion import CPULion
from precast.optim.cpu_sgd import CPUSGD
from precast.optim.fused_adam import FusedAdam, FusedAdamW
from precast.optim.fused_others import FusedAdagrad, FusedLAMB, FusedLion, FusedSGD
from precast.optim.hybrid_adam import HybridAdam

__all__ = [
    "CPUSGD",
    "CPUAdagrad",
    "CPUAdam",
    "CPUAdamOptimizer",
    "CPULion",
    "FusedAdagrad",
    "FusedAdam",
    "FusedAdamW",
    "FusedLAMB",
    "FusedLion",
    "FusedSGD",
    "HybridAdam",
]
