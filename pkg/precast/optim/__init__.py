"""Optimizers over the package's kernels, with the interface of ``torch.optim``."""

from __future__ import annotations

from precast.optim.cpu_adam import CPUAdam, CPUAdamOptimizer

__all__ = ["CPUAdam", "CPUAdamOptimizer"]
