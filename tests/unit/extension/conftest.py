"""A package with sources of its own, in a folder of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

# A binding without torch's headers, which take half a minute to compile.
BINDING = r"""
#include <Python.h>
#include "number.h"
static PyObject* number(PyObject*, PyObject*) { return PyLong_FromLong(NUMBER + EXTRA); }
static PyMethodDef methods[] = {{"number", number, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", "", -1, methods};
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
PyMODINIT_FUNC JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""

CLASSES = """
from precast.base_extension import _CppExtension, _CudaExtension
from precast.extension import DeviceExtension


class NumberExtension(_CppExtension):
    def __init__(self):
        super().__init__(name="number_ext")

    def sources_files(self):
        return [self.csrc_abs_path("number.cpp")]

    def include_dirs(self):
        return [self.csrc_abs_path("include"), ""]

    def cxx_flags(self):
        return ["-O1", "-DEXTRA=2", ""] + self.version_dependent_macros


class NumberCudaExtension(_CudaExtension):
    def __init__(self):
        super().__init__(name="number_cuda", priority=3)

    def sources_files(self):
        return [self.csrc_abs_path(fname) for fname in ["number.cpp", "scale.cu"]]

    def include_dirs(self):
        return [self.csrc_abs_path("include"), self.get_cuda_home_include()]

    def cxx_flags(self):
        return ["-O3"]

    def nvcc_flags(self):
        return ["-O3", "--use_fast_math"]


class ScaleExtension(DeviceExtension):
    def __init__(self):
        super().__init__("scale_ext")

    def sources_files(self):
        return [self.csrc_abs_path("scale.cu")]

    def include_dirs(self):
        return [self.csrc_abs_path("include")]

    def defines(self):
        return {"OFFSET": "1.0f"}

    def instances(self):
        return {"scale.cu": ["scale<float, 4>", "scale<double, 2>"]}
"""

DEVICE = """
#include "number.h"
struct alignas(64) Descriptor { char bytes[128]; };
template <class T, int N>
__global__ void scale(T* x, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor * N;
}
extern "C" __global__ void fill(float* y, double value, unsigned char flag, const __grid_constant__ Descriptor d) {
  extern __shared__ float buffer[];
  buffer[threadIdx.x] = value + OFFSET + NUMBER + flag + d.bytes[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = buffer[threadIdx.x];
}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module with the classes; what it builds goes into a cache of its own."""
    folder = tmp_path / "site" / "somebody"
    (folder / "csrc" / "kernel" / "include").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "extensions.py").write_text(CLASSES)
    (folder / "csrc" / "kernel" / "include" / "number.h").write_text("#define NUMBER 40\n")
    (folder / "csrc" / "kernel" / "number.cpp").write_text(BINDING)
    (folder / "csrc" / "scale.cu").write_text(DEVICE)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("somebody.extensions")
    for name in [name for name in sys.modules if name.split(".")[0] == "somebody"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests share which only need a build to be there."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def warm(package: ModuleType, kept: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The same module; what it builds may have been built before."""
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(kept))
    return package
