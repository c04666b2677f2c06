"""``python -m precast.build init NAME [--cpp] [--cuda | --triton]``: a complete small package with one op.

The op is declared once, so that graphs know it before a library is opened: with ``--cuda`` in setup.py, from which the
build makes the launch of the kernel, else in Python. ``--cpp``, the default, implements the op on the CPU for every
torch from 2.10 on, ``--cuda`` by NVRTC and ``--triton`` for every torch. With ``--cuda`` or ``--triton`` but without
``--cpp``, the CPU computes it in plain torch.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from precast.core.torch_abi import STABLE_FLOOR

_INIT = '''"""A triangle wave: how far each value is from the nearest even integer."""

import torch
from torch import Tensor
@imports@
@schema@@loads@

def wave(x: Tensor) -> Tensor:
    """``|x - 2 round(x / 2)|``, for float32."""
    return torch.ops.@name@.wave(x)
'''
_SCHEMA = """_LIBRARY = torch.library.Library("@name@", "DEF")
_LIBRARY.define("wave(Tensor x) -> Tensor", tags=[torch.Tag.pt2_compliant_tag])
torch.library.register_fake("@name@::wave")(torch.empty_like)

"""
_LOAD_CPU = "from @name@ import cpu  # noqa: E402, F401 - proved to fit before it is opened; else PrebuiltRefused\n"
_PLAIN_CPU = '@library@.impl("wave", lambda x: (x - 2 * (x / 2).round()).abs(), "CPU")\n'
_LOAD_TRITON = '_LIBRARY.impl("wave", triton_wave.wave, "CUDA")\n'

_CPP = """#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cmath>

using torch::stable::Tensor;

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread

Tensor wave(const Tensor& given) {
  STD_TORCH_CHECK(given.scalar_type() == torch::headeronly::ScalarType::Float, "wave: x must be float32");
  const Tensor x = torch::stable::contiguous(given);
  Tensor out = torch::stable::empty_like(x);
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  torch::stable::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = std::fabs(from[i] - 2 * std::nearbyint(from[i] / 2));
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(@name@, CPU, m) { m.impl("wave", TORCH_BOX(&wave)); }
"""
_CUDA_CU = """// Out-of-bounds threads do nothing; precast checks device, dtype and shape, and makes x contiguous.
extern "C" __global__ void wave(const float* x, float* out, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = fabsf(x[i] - 2 * nearbyintf(x[i] / 2));
}
"""
_TRITON = '''"""The kernel for GPUs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _wave(source, target, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(source + at, mask=at < n)
    half = x * 0.5
    low = tl.floor(half)
    odd = low - 2 * tl.floor(low * 0.5)
    up = (half - low > 0.5) | ((half - low == 0.5) & (odd == 1))  # ties go to the even integer, as in torch
    tl.store(target + at, tl.abs(x - 2 * tl.where(up, low + 1, low)), mask=at < n)


def wave(given: Tensor) -> Tensor:
    """One value for each value of a float32 tensor."""
    if given.dtype != torch.float32:
        raise RuntimeError(f"wave: x must be float32, not {given.dtype}")
    x = given.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _wave[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK)
    return out
'''
_SETUP = """from setuptools import setup

from precast.build import BuildExtension, @classes@, ext_modules

setup(
    ext_modules=ext_modules(
@modules@    ),
    cmdclass={"build_ext": BuildExtension},
)
"""
_STABLE = '        StableExtension("@name@.cpu", ["csrc/wave.cpp"]),  # every torch from @floor@ on\n'
_DEVICE = """        DeviceExtension(  # every torch; the GPUs of PRECAST_CUDA_ARCH_LIST, else those here
            "@name@.cuda",
            "csrc/wave.cu",
            ops={"wave(Tensor x) -> Tensor": ["wave"]},  # a thread for each element of the result
        ),
"""
_PYPROJECT = """[build-system]
requires = [@requires@]
build-backend = "setuptools.build_meta"

[project]
name = "@distribution@"
version = "1.0"
description = "One op for torch"
readme = "README.md"
license = "MIT"
license-files = ["LICENSE"]
requires-python = ">=3.10"
dependencies = [@dependencies@]

[tool.setuptools]
packages = ["@name@"]
package-data = { "@name@" = ["py.typed"] }
"""
_README = """# @distribution@

`@name@.wave(x)` is `|x - 2 round(x / 2)|`, for float32, on CPU and CUDA.

```sh
pip install --no-build-isolation .@install@
python -m pytest
```
"""
_LICENCE = """MIT License

Copyright (c) the authors of @distribution@

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
# The workflow calls ours for what is built once per torch; a package without a build has a workflow of its own.
_WORKFLOW = """# Wheels for each torch, merged, tested and put on an index page. Name the repository of precast and
# the commit of a release, twice. A tag that begins with v is published too, by a trusted publisher at PyPI.
name: wheels
on:
  push: { tags: ["v*"] }
  workflow_dispatch:
permissions: {}
concurrency: { group: wheels, cancel-in-progress: false }
jobs:
@wheels@  publish:
    needs: wheels
    if: github.ref_type == 'tag'
    runs-on: ubuntu-24.04
    timeout-minutes: 15
    environment: pypi
    permissions: { id-token: write } # trusted publishing: no token is kept
    steps:
      - uses: actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1
        with: { name: wheels, path: dist }
      - uses: pypa/gh-action-pypi-publish@cef221092ed1bacb1cc03d23a2d87d1d172e277b # v1.14.0
"""
_CALL = """  wheels:
    uses: OWNER/precast/.github/workflows/wheels.yml@0000000000000000000000000000000000000000 # v1.0.0
    permissions: { contents: read }
    with:
      torch: "2.13,2.14"
      cuda: ""
@gpus@      python: "3.12"
      requires: numpy
      precast: "precast @ https://github.com/OWNER/precast/archive/0000000000000000000000000000000000000000.zip"
"""
_PURE = """  wheels:
    runs-on: ubuntu-24.04
    timeout-minutes: 30
    permissions: { contents: read }
    steps:
      - uses: actions/checkout@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0 # v7.0.0
        with: { persist-credentials: false }
      - run: python3 -m venv "$RUNNER_TEMP/env"
      - run: '"$RUNNER_TEMP/env/bin/python" -m pip wheel --no-deps -w dist .'
      - run: '"$RUNNER_TEMP/env/bin/python" -m pip install dist/*.whl numpy pytest'
      - run: '"$RUNNER_TEMP/env/bin/python" -m pytest -q'
      - uses: actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1
        with: { name: wheels, path: dist, if-no-files-found: error, overwrite: true }
"""
_TEST = """import pytest
import torch

from @name@ import wave

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 100_003)])
def test_numbers(shape, device):
    x = torch.randn(shape, device=device) * 10
    for given in (x, x.mT if x.dim() > 1 else x):
        exact = (given.double() - 2 * (given.double() / 2).round()).abs()
        torch.testing.assert_close(wave(given).double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_graphs(device):
    torch.library.opcheck(torch.ops.@name@.wave.default, (torch.randn(5, device=device),))
"""
_TEST_REFUSAL = """

def test_bad_input():
    with pytest.raises(RuntimeError, match="x must be float32"):
        wave(torch.ones(2, dtype=torch.int64))
"""
_INSTALLED = "  # in an environment that has what build-system.requires names"
_IGNORED = (
    "build/\ndist/\n*.egg-info/\n__pycache__/\n# What an editable install puts next to the sources.\n_C/\n_precast/\n"
)


# As the import name, and with dashes as the name on an index, which has no dash at an end.
_NAME = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")
# What tests of the package import, from a folder in which its own name comes first; and folders of the package.
_TAKEN = {*sys.stdlib_module_names, "precast", "torch", "triton", "numpy", "setuptools", "pytest"}
_TAKEN |= {"build", "csrc", "dist", "setup", "tests"}


def main(arguments: Sequence[str]) -> int:
    """Write the package into a new folder. Exit status 2: a bad name, or the folder is there."""
    parser = argparse.ArgumentParser(prog="python -m precast.build init", description=__doc__)
    parser.add_argument("name", help="the import name of the package, and the name of its folder")
    parser.add_argument("--cpp", action="store_true", help="a C++ kernel for the CPU; the default")
    gpu = parser.add_mutually_exclusive_group()
    gpu.add_argument("--cuda", action="store_true", help="a CUDA kernel, compiled by NVRTC")
    gpu.add_argument("--triton", action="store_true", help="a Triton kernel")
    options = parser.parse_args(arguments)
    root = Path(options.name)
    if not _NAME.fullmatch(options.name):
        needed = "lower-case letters, digits and underscores, between a letter and a letter or digit"
        parser.error(f"{options.name} is no name for a package: needed {needed}")
    if options.name in _TAKEN or keyword.iskeyword(options.name):
        parser.error(f"{options.name} is no name for a package: it means something else to Python, or in this package")
    if root.exists():
        parser.error(f"{root.absolute()} is there: name another, or remove it")
    cpp = options.cpp or not (options.cuda or options.triton)
    for where, text in files(options.name, cpp=cpp, cuda=options.cuda, triton=options.triton).items():
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        (root / where).write_text(text, encoding="utf-8")
        print(root / where)
    sys.stdout.flush()
    return 0


def files(name: str, *, cpp: bool, cuda: bool, triton: bool) -> Mapping[str, str]:
    """The files of the package by their paths. Each kind adds its sources, and its lines to the common files."""
    imports = "".join(
        (
            f"\nfrom {name} import cuda  # the build makes it: defines the op, and launches wave.cu\n" * cuda,
            f"\nfrom {name} import triton_wave\n" * triton,
        )
    )
    cpu = _LOAD_CPU if cpp else _PLAIN_CPU.replace("@library@", "cuda.library" if cuda else "_LIBRARY")
    init = _INIT.replace("@imports@", imports).replace("@schema@", "" if cuda else _SCHEMA)
    made = {
        f"{name}/__init__.py": init.replace("@loads@", cpu + _LOAD_TRITON * triton),
        "pyproject.toml": _PYPROJECT.replace("@requires@", _quoted(["setuptools>=77.0.3", *_build(cpp, cuda)])).replace(
            "@dependencies@", _quoted([f"torch>={STABLE_FLOOR}", *["precast"] * cuda, *["triton"] * triton])
        ),
        "tests/test_wave.py": _TEST + _TEST_REFUSAL * cpp,
        f"{name}/py.typed": "",
        "README.md": _README.replace("@install@", _INSTALLED * (cpp or cuda)),
        "LICENSE": _LICENCE,
        ".github/workflows/wheels.yml": _WORKFLOW.replace("@wheels@", _CALL if cpp or cuda else _PURE).replace(
            "@gpus@", '      gpus: "8.0 9.0+PTX"\n' * cuda
        ),
        ".gitignore": _IGNORED + "".join(f"/{name}/{one}.py\n" for one in ("cpu",) * cpp + ("cuda",) * cuda),
    }
    if cpp:
        made["csrc/wave.cpp"] = _CPP
    if cuda:
        made["csrc/wave.cu"] = _CUDA_CU
    if triton:
        made[f"{name}/triton_wave.py"] = _TRITON
    if cpp or cuda:
        classes = ", ".join(["DeviceExtension"] * cuda + ["StableExtension"] * cpp)
        made["setup.py"] = _SETUP.replace("@classes@", classes).replace("@modules@", _STABLE * cpp + _DEVICE * cuda)
    words = {"@name@": name, "@floor@": str(STABLE_FLOOR), "@distribution@": name.replace("_", "-")}
    for word, replaced in words.items():
        made = {where: text.replace(word, replaced) for where, text in made.items()}
    return made


def _build(cpp: bool, cuda: bool) -> list[str]:
    return ["precast"] * (cpp or cuda) + ["ninja"] * cpp + ["nvidia-cuda-nvrtc==13.*"] * cuda


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)
