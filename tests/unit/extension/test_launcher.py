"""Ops of a DeviceExtension: declared once, held against the kernels by the build, checked and launched at each call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precast._builder import nvrtc
from precast._cubin import launcher, signature
from precast._load import probe
from precast.build import DeviceExtension, device
from precast.core.host import Nvrtc
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.version import Label
from precast.errors import KernelError

pytestmark = [pytest.mark.torch, pytest.mark.wheel]

SOURCE = """
#include "limit.h"
extern "C" __global__ void __launch_bounds__(64) add(
    const float* __restrict__ x, const float* y, /* a number */ float alpha, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = LIMIT * x[i] + alpha * y[i];
}
extern "C" __global__ void add_long(const long long* x, const long long* y, float alpha, long long* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + static_cast<long long>(alpha) * y[i];
}
extern "C" __global__ void fill(float* x, const float* row, long long row_size_0, int by, long long n) {
  const long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = by * row[i % row_size_0];
}
"""
OPS = {
    "add(Tensor x, Tensor y, *, float alpha=1.0) -> Tensor": ["add", "add_long"],
    "fill(Tensor(a!) x, Tensor row, int by) -> ()": ["fill"],
}


@pytest.fixture
def made(tmp_path: Path, label_nvrtc: Callable[[str], Nvrtc], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that the build writes, in a package as a wheel installs it."""
    compiler = label_nvrtc("cu130")
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda *asked: (compiler, ()))
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "limit.h").write_text("#define LIMIT 1\n")
    (tmp_path / "csrc" / "ops.cu").write_text(SOURCE)
    extension = DeviceExtension("made_ops.device", "csrc/ops.cu", targets=["sm_80", "compute_80"], ops=OPS).build_aot()
    assert [str(path) for path in device.sources(extension)] == ["csrc/limit.h", "csrc/ops.cu"]
    folder = tmp_path / "site" / "made_ops"
    built = device.build_images(extension, folder / "_C", probe.read_settings())
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, True, "0" * 64, (), (), built.files)
    (folder / "_C" / "build_info.json").write_text(info.to_json())
    (folder / "__init__.py").touch()
    (folder / "device.py").write_text(built.module)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield importlib.import_module("made_ops.device")
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_ops"]:
        vars(sys.modules[name]).pop("library", None)
        del sys.modules[name]


def test_ops_are_defined_checked_and_launched(made: ModuleType) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops: Any = torch.ops.made_ops
    launched: list[tuple[Any, ...]] = []
    kernels = {name: lambda *given, name=name: launched.append((name, *given)) for name in ("add", "add_long", "fill")}

    def call(name: str, *given: object, **named: object) -> Any:
        """As the dispatcher calls the kernel for CUDA tensors; these are on the CPU."""
        op = next(op for op in made_data(made) if op["name"] == name)
        return launcher._call(op, getattr(ops, name).default._schema, lambda: kernels, *given, **named)

    x, y = torch.rand(5, 40), torch.rand(40, 5).mT
    out = call("add", x, y, alpha=2.0)
    name, grid, block, *given = launched.pop()
    assert (name, grid, block, given[2], given[4]) == ("add", (4,), (64,), 2.0, 200), "a thread for each element"
    assert torch.equal(given[1], y) and given[1].is_contiguous() and given[3] is out and out.shape == x.shape
    assert call("add", x.long(), y.long()).dtype == torch.int64
    assert (launched[0][0], launched.pop()[5]) == ("add_long", 1.0), "the kernel for these dtypes; the default"
    assert call("fill", x, torch.rand(8), 3) is None and launched.pop()[3:][2:] == (8, 3, 200)
    assert call("add", x[:0], y[:0]).numel() == 0 and not launched
    for arguments, said in (
        ((x, y.half()), "add: y must be float32 or int64, not float16"),
        ((x.long(), y), "add: x must be float32 or int64, not int64"),
        ((x, y[:, :3]), r"add: y has the shape \(5, 3\), and x \(5, 40\)"),
        ((x, y.to("meta")), "add: y is on meta, and x on cpu"),
    ):
        with pytest.raises(RuntimeError, match=said):
            call("add", *arguments)
    with pytest.raises(RuntimeError, match="fill: x must be contiguous, as it is written to"):
        call("fill", x.mT, x[0], 1)
    with FakeTensorMode():
        fake = torch.empty(3, 4, device="cuda").mT
        assert ops.add(fake, fake).stride() == (3, 1), "a graph knows the result on a machine without a GPU"
    assert torch._C._dispatch_has_kernel_for_dispatch_key("made_ops::fill", "CUDA")
    with pytest.raises(ImportError, match=r"made_ops\.device has device code for no GPU here"):
        made.add  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'sub'"):
        made.sub  # noqa: B018


def made_data(module: ModuleType) -> list[dict[str, Any]]:
    return signature.read(OPS, {"csrc/ops.cu": SOURCE})


@pytest.mark.parametrize(
    ("schema", "kernel", "said"),
    [
        ("f(Tensor? x) -> Tensor", "const float* x, float* out", "found   the argument 'Tensor? x'"),
        ("f(Tensor x) -> Tensor[]", "const float* x", "found   another form than name(arguments) -> result"),
        ("f(Tensor(a!) x) -> Tensor", "float* x, float* out", "either a result or an argument Tensor(a!)"),
        ("f(Tensor x) -> Tensor", "float* x, float* out", "'float* x': not const, and the schema does not say"),
        ("f(Tensor x) -> Tensor", "const float* y, float* out", "'const float* y': no argument of that name"),
        ("f(Tensor x) -> Tensor", "const Big* x, float* out", "not a pointer to numbers of a dtype of torch"),
        ("f(Tensor x) -> Tensor", "const float* x, int n", "no parameter out"),
        ("f(Tensor x, float a) -> Tensor", "const float* x, int a, float* out", "'int a': not of the type float"),
        ("f(Tensor x) -> Tensor", "const float* x, float* out[2]", "not a plain pointer or number"),
    ],
)
def test_a_declaration_that_the_kernel_contradicts_stops_the_build(schema: str, kernel: str, said: str) -> None:
    with pytest.raises(KernelError) as caught:
        signature.read({schema: ["k"]}, {"k.cu": f'extern "C" __global__ void k({kernel}) {{}}'})
    assert said in str(caught.value)


def test_a_kernel_that_is_not_there_stops_the_build() -> None:
    with pytest.raises(KernelError, match=r'no kernel k in k\.cu\n  needed  extern "C" __global__ void k'):
        signature.read({"f(Tensor x) -> Tensor": ["k"]}, {"k.cu": "__global__ void other(const float* x) {}"})
    ops = signature.read({"f(Tensor x) -> Tensor": ["k"]}, {"k.cu": "__global__ void k(const float* x, float* out) {}"})
    with pytest.raises(KernelError, match=r'found   the entry points _Z1kPKfPf\n  needed  extern "C"'):
        signature.refuse_unknown("ops.device", ops, {"_Z1kPKfPf"})
