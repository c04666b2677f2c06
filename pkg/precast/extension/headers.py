"""Header folders for device code, from packages on PyPI: CCCL (libcu++, CUB), CUTLASS, and CUDA's own."""

from __future__ import annotations

import sys
from pathlib import Path

from precast._load import probe
from precast.errors import KernelUnavailable

# The places where packages put the headers.
_CUDA_FOLDERS = ("nvidia/cu13/include", "nvidia/cuda_runtime/include")
_CCCL_FOLDERS = ("nvidia/cu13/include/cccl", "nvidia/cuda_cccl/include", "cuda/cccl/headers/include")


def cuda() -> str:
    """CUDA's headers (``cuda_bf16.h``, ``cooperative_groups.h``), from a package next to torch, else from a toolkit."""
    return _find("CUDA", "cuda_fp16.h", _CUDA_FOLDERS, "include", "nvidia-cuda-runtime")


def cccl() -> str:
    """libcu++, CUB and Thrust: ``#include <cub/block/block_reduce.cuh>``."""
    return _find("CCCL", "cuda/std/type_traits", _CCCL_FOLDERS, "include/cccl", "nvidia-cuda-cccl")


def cutlass() -> str:
    """CUTLASS and CuTe: ``#include <cute/tensor.hpp>``. They also need ``cuda()`` and ``cccl()``."""
    return _find("CUTLASS", "cute/tensor.hpp", ("cutlass_library/source/include",), None, "nvidia-cutlass")


def _find(what: str, marker: str, folders: tuple[str, ...], in_toolkit: str | None, package: str) -> str:
    home = probe.read_settings().cuda_home or "/usr/local/cuda"
    places = [Path(entry) / folder for entry in sys.path if entry for folder in folders]
    places += [Path(home) / in_toolkit] if in_toolkit else []
    for place in places:
        if (place / marker).is_file():
            return str(place)
    from precast.core import pip  # imported for errors alone

    raise KernelUnavailable(
        f"the headers of {what} were not found",
        found=f"no {marker} in {', '.join(folders)} of sys.path{f', nor in {places[-1]}' if in_toolkit else ''}",
        needed=marker,
        fix=f"{pip.install_command()} {package}",
    )
