"""C++ and CUDA sources with a Python binding, compiled by nvcc: the older ``_CudaExtension``."""

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
    """Kernels that nvcc compiles; ``build_aot`` gives the ``torch.utils.cpp_extension.CUDAExtension`` of a setup.py.

    nvcc is asked for when something is built, never to load what was built while installing. For device code that
    needs no nvcc, and fits every torch, see ``CubinExtension``.
    """

    backend: ClassVar[str] = "cuda"

    @abstractmethod
    def nvcc_flags(self) -> list[str]:
        """The flags of nvcc; the targets are chosen by ``TORCH_CUDA_ARCH_LIST``, else by the GPUs that are visible."""

    def is_available(self) -> bool:
        """Whether torch is a CUDA build and a GPU is visible; creates no CUDA context."""
        return verdict.sees_cuda_gpu()

    def get_cuda_home_include(self) -> str:
        """The headers of the CUDA toolkit."""
        from precast.extension import native

        return str(Path(native.cuda_home(self.name)) / "include")

    def _native(self) -> Native:
        return dataclasses.replace(super()._native(), nvcc_flags=tuple(self.strip_empty_entries(self.nvcc_flags())))
