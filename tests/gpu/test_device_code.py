"""Device code as data on a GPU: every promise of docs/guides/device-code.md that needs one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from precast.extension import DeviceExtension, KernelModule

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
SOURCE = Path(__file__).parent / "device" / "kernels.cu"
REGISTERS, LOCAL_BYTES = 4, 3  # CUfunction_attribute


class Kernels(DeviceExtension):
    """The kernels of device/kernels.cu."""

    def __init__(self) -> None:
        super().__init__("gpu_test_kernels")

    def sources_files(self) -> list[str]:
        return [str(SOURCE)]

    def instances(self) -> dict[str, list[str]]:
        return {SOURCE.name: ["scale<float, 4>", "scale<double, 2>"]}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRECAST_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield Kernels().load()


def member(kernels: KernelModule, name: str) -> Any:
    return getattr(kernels, name)


def needs_hopper() -> bool:
    """Clusters and TMA came with compute capability 9.0; before it the source has no such kernels."""
    import torch

    return torch.cuda.get_device_capability() >= (9, 0)


def test_templates_and_streams(kernels: KernelModule) -> None:
    import torch

    x = torch.arange(1000, device="cuda", dtype=torch.float32)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        fed = x * 1
        member(kernels, "scale<float, 4>")((4,), (256,), fed, 0.5, 1000)
    side.synchronize()
    assert torch.equal(fed, x * 2)
    wide = x.double()
    member(kernels, "scale<double, 2>")((4,), (256,), wide, 3, 1000)
    assert torch.equal(wide, x.double() * 6)


def test_more_shared_memory_than_48_kb(kernels: KernelModule) -> None:
    import torch

    n = 15_000  # 60 KB
    x = torch.rand(n, device="cuda")
    y = torch.empty_like(x)
    kernel = member(kernels, "reverse")
    kernel((1,), (256,), x, y, n, shared_bytes=4 * n)
    assert torch.equal(y, x.flip(0))
    usage, function = kernel.usage(), kernel.prepare(0)
    assert usage.registers == function.attribute(REGISTERS) and function.attribute(LOCAL_BYTES) == usage.stack_bytes


def test_clusters(kernels: KernelModule) -> None:
    import torch

    if not needs_hopper():
        assert not hasattr(kernels, "ranks")
        return
    out = torch.zeros(8, device="cuda", dtype=torch.int32)
    member(kernels, "ranks")((8,), (32,), out, cluster=(4,))
    assert out.tolist() == [4, 104, 204, 304] * 2


def test_tma(kernels: KernelModule) -> None:
    import torch

    from precast.extension import tensor_map

    if not needs_hopper():
        assert not hasattr(kernels, "tile")
        return
    x = torch.rand(40, 64, device="cuda")
    y = torch.empty(16, 32, device="cuda")
    member(kernels, "tile")((1,), (128,), tensor_map(x, (16, 32)), y, 8, 16)
    assert torch.equal(y, x[8:24, 16:48])
    member(kernels, "tile")((1,), (128,), tensor_map(x, (16, 32)), y, 32, 48)
    assert torch.equal(y[:8, :16], x[32:, 48:]) and not y[8:].any() and not y[:, 16:].any()


def test_a_captured_launch_and_a_fresh_thread(kernels: KernelModule) -> None:
    import torch

    x = torch.ones(64, device="cuda")
    kernel = member(kernels, "scale<float, 4>")
    kernel.prepare(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel((1,), (64,), x, 0.5, 64)
    x.fill_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert x.eq(2).all()
    thread = threading.Thread(target=lambda: kernel((1,), (64,), x, 0.25, 64))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert x.eq(2).all()


def test_the_profiler_has_the_names(kernels: KernelModule) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(64, device="cuda")
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as recorded:
        member(kernels, "scale<float, 4>")((1,), (64,), x, 0.5, 64)
        member(kernels, "reverse")((1,), (64,), x, torch.empty_like(x), 64, shared_bytes=256)
        torch.cuda.synchronize()
    names = " ".join(event.key for event in recorded.key_averages())
    assert "scale<float, 4>" in names and "reverse" in names, names


def test_a_second_load_compiles_nothing_and_the_wrong_device_is_refused(kernels: KernelModule) -> None:
    import torch

    again = Kernels().load()
    assert {source.kind for _, source in kernels.images} == {"jit"}
    assert {source.kind for _, source in again.images} == {"cache"}
    with pytest.raises(ValueError, match="one CUDA device"):
        member(again, "reverse")((1,), (1,), torch.ones(1), torch.ones(1), 1)


AXPY = """
extern "C" __global__ void axpy(const float* x, const float* y, float a, float* out, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}
"""


def test_the_launch_that_a_build_makes_of_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built as setup.py does, into a package that is then imported."""
    import importlib

    import torch

    from precast._load import probe
    from precast.build import DeviceExtension, device
    from precast.core.manifest import BuildInfo, BuildMode
    from precast.core.version import Label

    monkeypatch.chdir(tmp_path)
    (tmp_path / "axpy.cu").write_text(AXPY)
    schema = "axpy(Tensor x, Tensor y, float a=1.0) -> Tensor"
    made = device.build_images(
        DeviceExtension("axpy_ops.cuda", "axpy.cu", ops={schema: ["axpy"]}).build_aot(),
        tmp_path / "axpy_ops" / "_C",
        probe.read_settings(),
    )
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, True, "0" * 64, (), (), made.files)
    (tmp_path / "axpy_ops" / "_C" / "build_info.json").write_text(info.to_json())
    (tmp_path / "axpy_ops" / "__init__.py").touch()
    (tmp_path / "axpy_ops" / "cuda.py").write_text(made.module)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("axpy_ops.cuda")
    op = torch.ops.axpy_ops.axpy
    x, y = torch.randn(100, 37, device="cuda"), torch.randn(37, 100, device="cuda").mT
    torch.testing.assert_close(op(x, y, 2.0), 2 * x + y)
    assert torch.equal(torch.compile(op, backend="aot_eager", fullgraph=True)(x, y), op(x, y))
    torch.library.opcheck(op.default, (x, y), {"a": 0.5})
    with pytest.raises(RuntimeError, match="axpy: y is on cpu"):
        op(x, y.cpu())
