"""Optimizers on top of the package's kernels, with the interface of ``torch.optim``."""

from __future__ import annotations

import precast._load  # noqa: F401  # refuses a subinterpreter, in which the import of torch never ends
from precast.compat.adam import CPUAdamOptimizer
from precast.optim import (
    adam,
    compat,  # noqa: F401  # the names of older packages
    others,
)
from precast.optim.adam import *  # noqa: F403
from precast.optim.hybrid_adam import HybridAdam
from precast.optim.others import *  # noqa: F403

__all__ = ["CPUAdamOptimizer", "HybridAdam"]
__all__ += adam.__all__
__all__ += others.__all__
