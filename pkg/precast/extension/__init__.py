"""Extensions: classes that can give a loader its kernels, built in or registered by other packages.

``CppExtension`` and ``CudaExtension`` compile sources with a Python binding, and ``DeviceExtension`` compiles device
code as data. ``TritonExtension`` and ``TorchExtension`` need no build. Each is imported on first use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from precast.extension.base import Extension
    from precast.extension.cpp import CppExtension
    from precast.extension.cuda import CudaExtension
    from precast.extension.device import DeviceExtension, tensor_map
    from precast.extension.module import KernelModule
    from precast.extension.torch_reference import TorchExtension
    from precast.extension.triton import TritonExtension

_HOMES = {
    "Extension": "base",
    "CppExtension": "cpp",
    "CudaExtension": "cuda",
    "DeviceExtension": "device",
    "TritonExtension": "triton",
    "TorchExtension": "torch_reference",
    "KernelModule": "module",
    "tensor_map": "device",
    # Older names.
    "_Extension": "base",
    "_CppExtension": "cpp",
    "_CudaExtension": "cuda",
    "_TritonExtension": "triton",
}

__all__ = [
    "CppExtension",
    "CudaExtension",
    "DeviceExtension",
    "Extension",
    "KernelModule",
    "TorchExtension",
    "TritonExtension",
    "tensor_map",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HOMES)}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(module, name.lstrip("_"))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
