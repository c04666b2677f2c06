"""The import path that extension classes were written for: ``from precast.base_extension import _Extension``."""

from precast.extension import CppExtension, CudaExtension, Extension, TritonExtension

_Extension = Extension
_CppExtension = CppExtension
_CudaExtension = CudaExtension
_TritonExtension = TritonExtension
BaseExtension = Extension

__all__ = [
    "BaseExtension",
    "CppExtension",
    "CudaExtension",
    "Extension",
    "TritonExtension",
    "_CppExtension",
    "_CudaExtension",
    "_Extension",
    "_TritonExtension",
]
