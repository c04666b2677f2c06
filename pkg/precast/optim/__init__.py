"""Optimizers over the package's kernels, with the interface of ``torch.optim``."""

from __future__ import annotations

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.optim.cpu_adam import CPUAdam, CPUAdamOptimizer

__all__ = ["CPUAdam", "CPUAdamOptimizer"]
