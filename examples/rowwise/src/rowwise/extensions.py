"""Two extensions of one loader: a Triton kernel of high priority, and plain torch for everything else."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

from precast.extension import TorchExtension, TritonExtension
from precast.kernel_loader import KernelLoader
from rowwise import reference


class LogSumExpTriton(TritonExtension):
    """One pass over each row; wherever Triton and a GPU are."""

    def __init__(self) -> None:
        super().__init__("log_sum_exp_triton", priority=10)

    def build_jit(self) -> ModuleType:
        """The module is imported here and not above: without Triton it cannot be."""
        from rowwise import triton_kernel

        return triton_kernel


class LogSumExpTorch(TorchExtension):
    """The lowest priority there is, and always available."""

    members: ClassVar = {"log_sum_exp": reference.log_sum_exp}

    def __init__(self) -> None:
        super().__init__("log_sum_exp_torch")


class LogSumExpLoader(KernelLoader):
    """What is always there is listed here; kernels announce themselves by entry points, ours too."""

    REGISTRY: ClassVar = [LogSumExpTorch]
