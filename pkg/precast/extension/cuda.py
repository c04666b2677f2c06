"""C++ and CUDA sources with a Python binding, compiled by nvcc, as by Colossal-AI's ``_CudaExtension``."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from precast._load import verdict
from precast.extension.cpp import CppExtension

if TYPE_CHECKING:
    from precast.extension.native import Native


class CudaExtension(CppExtension):
    """Kernels compiled by nvcc. ``build_aot`` returns the ``torch.utils.cpp_extension.CUDAExtension`` for a setup.py.

    nvcc is only needed to build, never to load what was built at install time. For device code that needs no nvcc and
    works with every torch, see ``DeviceExtension``.
    """

    backend: ClassVar[str] = "cuda"

    @abstractmethod
    def nvcc_flags(self) -> list[str]:
        """The flags of nvcc. ``TORCH_CUDA_ARCH_LIST`` chooses the targets, else the visible GPUs do."""
        return ["-DCOLOSSAL_WITH_CUDA"]  # sources written for Colossal-AI test this macro

    def include_dirs(self) -> list[str]:
        """The folders to search for headers: ``csrc``, and the include folder of the CUDA toolkit."""
        return [*super().include_dirs(), self.get_cuda_home_include()]

    def is_available(self) -> bool:
        """Whether torch is a CUDA build and a GPU is visible; creates no CUDA context."""
        return verdict.sees_cuda_gpu()

    def get_cuda_home_include(self) -> str:
        """The include folder of the CUDA toolkit."""
        from precast.extension import native

        return str(Path(native.cuda_home(self.name)) / "include")

    def _native(self) -> Native:
        return dataclasses.replace(super()._native(), nvcc_flags=tuple(self.strip_empty_entries(self.nvcc_flags())))
