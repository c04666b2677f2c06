"""Builds of one package for CUDA 12 and CUDA 13 in one wheel: the guard opens the one for this torch's CUDA."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from precast.core import opening
from precast.core.host import Host
from precast.core.version import CudaVersion, TorchVersion
from precast.errors import PrebuiltRefused
from tests.downstream.finished import INIT, SUFFIX, Make, guarded, library, manifest, pretend
from tests.kit import spawn

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

# A module that needs the CUDA runtime of one major and nothing else of CUDA.
FAKE = """
#include <Python.h>
extern "C" int cudaRuntimeGetVersion(int*);
namespace at {{ int get_num_threads(); }}
static PyObject* built(PyObject*, PyObject*) {{
  int version = at::get_num_threads(); cudaRuntimeGetVersion(&version); return PyLong_FromLong({major}); }}
static PyMethodDef methods[] = {{{{"built", built, METH_NOARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods}};
PyMODINIT_FUNC PyInit__C() {{ return PyModule_Create(&module); }}
"""
# The same with a kernel, by nvcc: what it returns was computed on the GPU.
REAL = """
#include <Python.h>
#include <cuda_runtime.h>
__global__ void add(int* x) { *x += 13; }
static PyObject* built(PyObject*, PyObject*) {
  int *there, here = 0;
  cudaMalloc(&there, 4); cudaMemset(there, 0, 4); add<<<1, 1>>>(there);
  if (cudaMemcpy(&here, there, 4, cudaMemcpyDeviceToHost)) here = -1;
  cudaFree(there);
  return PyLong_FromLong(here);
}
static PyMethodDef methods[] = {{"built", built, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


def fake(folder: Path, major: int) -> bytes:
    """A module that links ``libcudart.so.<major>``, of which only the name is there."""
    stub = f'extern "C" int cudaRuntimeGetVersion(int* out) {{ *out = {major}; return 0; }}'
    runtime = folder / f"libcudart.so.{major}"
    spawn.library(runtime, stub, f"-Wl,-soname,{runtime.name}")
    return library(folder, FAKE.format(major=major), str(runtime))


def with_cuda(version: str | None) -> Callable[[Host], Host]:
    def change(host: Host) -> Host:
        assert host.torch is not None
        torch = TorchVersion(host.torch.version.release, 0, None, None)
        cuda = CudaVersion.parse(version) if version else None
        return replace(host, torch=replace(host.torch, version=torch, cuda=cuda))

    return change


def merged(folder: Path, make: Make, builds: dict[int, bytes]) -> Path:
    """One wheel of the builds, each guarded by itself for the torch of its CUDA."""
    import torch

    release = torch.__version__.partition("+")[0]
    single = []
    for major, code in builds.items():
        plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code})
        single.append(guarded(folder / f"cu{major}", plain, torch=f"{release}+cu{major}0"))
    return guarded(folder / "both", *single)


def test_the_guard_takes_the_build_for_the_cuda_of_this_torch(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = merged(tmp_path, make, {major: fake(tmp_path, major) for major in (12, 13)})
    files = {file.cuda_major: file for file in manifest(wheel).host}
    assert set(files) == {12, 13}
    site(wheel)
    for version, major in (("12.8", 12), ("13.0", 13), ("12.1", 12)):
        pretend(monkeypatch, with_cuda(version))
        found = opening.library_file("ops", "_C")
        assert found.name == Path(files[major].path).name and f".cu{major}." in found.name
    for version, said in ((None, "found torch with CUDA none"), ("14.0", "found torch with CUDA 14.0")):
        pretend(monkeypatch, with_cuda(version))
        with pytest.raises(PrebuiltRefused, match=said) as caught:
            opening.library_file("ops", "_C")
        assert "needs a torch with CUDA 12, a torch with CUDA 13" in str(caught.value)


@pytest.mark.gpu
def test_the_kernel_of_the_right_build_runs(tmp_path: Path, make: Make) -> None:
    """A real build by this nvcc beside a made-up one of another major, in a process without precast."""
    import torch

    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    here, source, made = int(str(torch.version.cuda).split(".")[0]), tmp_path / "real.cu", tmp_path / "real.so"
    source.write_text(REAL)
    include = sysconfig.get_paths()["include"]
    options = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", f"-I{include}", "-arch=native")
    subprocess.run([nvcc, *options, "-o", str(made), str(source)], check=True)
    other = 12 if here == 13 else 13
    wheel = merged(tmp_path, make, {here: made.read_bytes(), other: fake(tmp_path, other)})
    spawn.python("-m", "zipfile", "-e", wheel, tmp_path / "site")
    code = (
        "import torch, sys; sys.path[:0] = [sys.argv[1]]; from ops import _C; torch.zeros(1, device='cuda')\n"
        "assert not any(name == 'precast' or name.startswith('precast.') for name in sys.modules)\n"
        "print(_C.built(), _C.__file__)"
    )
    said = spawn.python("-c", code, tmp_path / "site", env=spawn.environ("PYTHONPATH")).stdout
    assert said.startswith("13 ") and f".cu{here}." in said
