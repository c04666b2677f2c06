"""Launches from Python against a driver of our own: contexts, shared memory, clusters, TMA, and every refusal."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from precast._cubin import arguments, launch
from precast._cubin.driver import Driver, LaunchShape
from precast._cubin.images import Entry, Image
from precast._cubin.launch import Kernel
from precast._cubin.tma import tensor_map
from precast.core.capability import GpuTarget
from precast.core.version import CudaVersion
from precast.errors import KernelError, KernelUnavailable
from tests.kit import spawn

pytestmark = pytest.mark.compiler


class Fake(Driver):
    """The driver of the test, and what was called."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._c.fake_record.restype = ctypes.c_char_p

    def record(self) -> str:
        text: bytes = self._c.fake_record()
        return text.decode().strip()

    def fail(self, status: int) -> None:
        self._c.fake_fail(status)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    spawn.run("g++", "-x", "c", "-shared", "-fPIC", Path(__file__).with_name("fake_libcuda.c"), "-o", path)
    return path


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(library)
    made._c.cuCtxSetCurrent(None)
    made.record()
    monkeypatch.setattr(Driver, "shared", staticmethod(lambda: made))
    return made


def test_a_function_is_loaded_in_its_devices_context_and_launched_there(driver: Fake) -> None:
    function = driver.load(1, b"code", "scale", "ext.scale")
    assert driver.record() == "context(101) module(code) function(scale) context(0)"
    driver.load(1, b"code", "other", "ext.other")
    assert "module" not in driver.record(), "one module for one image"
    values = [ctypes.c_uint64(0xABC), ctypes.c_float(2.5)]
    function.launch(LaunchShape((2, 3, 1), (64, 1, 1), 1024), values, stream=40)
    assert driver.record() == "context(101) launch(2 3 1, 64 1 1, 1024, 40, abc, 2.5) context(0)"
    with driver.on(1):
        driver.record()
        function.launch(LaunchShape((1, 1, 1), (32, 1, 1)), values, stream=0)
        assert driver.record() == "launch(1 1 1, 32 1 1, 0, 0, abc, 2.5)", "it is current already"
    assert function.attribute(4) == 40


def test_more_than_48_kb_and_clusters_are_asked_for_once(driver: Fake) -> None:
    function = driver.load(0, b"big", "big", "ext.big")
    values = [ctypes.c_uint64(0), ctypes.c_float(0)]
    driver.record()
    for shared_bytes in (48 * 1024, 100_000, 90_000):
        function.launch(LaunchShape((16, 1, 1), (32, 1, 1), shared_bytes), values, 0)
    assert driver.record().count("set(8, 100000)") == 1 and driver.record() == ""
    function.launch(LaunchShape((16, 1, 1), (32, 1, 1), 0, (2, 1, 1)), values, 3)
    assert "cluster(16 1 1, 32 1 1, 0, 3, 1: 4 2 1 1)" in driver.record()
    for _ in range(2):
        function.launch(LaunchShape((16, 1, 1), (32, 1, 1), 0, (16,)), values, 0)
    assert driver.record().count("set(14, 1)") == 1


def test_shapes_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="needed a multiple of the cluster"):
        LaunchShape((15, 1, 1), (32, 1, 1), 0, (2, 1, 1))
    with pytest.raises(ValueError, match="shared_bytes is -1"):
        LaunchShape((1, 1, 1), (32, 1, 1), -1)
    for given in ((), (1, 2, 3, 4), (1.5,), (-1,), 256):
        with pytest.raises(ValueError, match="the grid is"):
            arguments.sizes("grid", given)
    assert arguments.sizes("grid", (5,)) == (5, 1, 1) and LaunchShape((0, 1, 1), (1, 1, 1)).is_empty


def test_the_drivers_words_reach_the_user(driver: Fake, tmp_path: Path) -> None:
    driver.fail(200)
    with pytest.raises(KernelError, match=r"cuModuleLoadData failed for ext\.x on cuda:0") as caught:
        driver.load(0, b"bad", "x", "ext.x")
    assert "CUDA_ERROR_INVALID_IMAGE (the driver's words)" in str(caught.value)
    driver.fail(0)
    with pytest.raises(KernelUnavailable, match="this CUDA driver is too old"):
        driver.call("cuSomethingNew")
    with pytest.raises(KernelUnavailable, match="there is no CUDA driver here"):
        Driver(str(tmp_path / "libcuda.so.1"))


@pytest.mark.parametrize(
    ("kind", "value", "raw"),
    [
        ("f32", 2, b"\0\0\0\x40"),
        ("f64", 0.5, b"\0\0\0\0\0\0\xe0\x3f"),
        ("u32", -1, b"\xff\xff\xff\xff"),
        ("u8", True, b"\x01"),
        ("u16", 65535, b"\xff\xff"),
        ("u64", None, bytes(8)),
        ("u64", 1 << 63, bytes(7) + b"\x80"),
        ("b8[4]", b"abcd", b"abcd"),
    ],
)
def test_numbers_become_the_bytes_of_their_parameter(kind: str, value: object, raw: bytes) -> None:
    (packed,) = arguments.pack("k", [kind], [value])
    assert bytes(packed) == raw


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("u32", 1 << 32, "does not fit into 32 bits"),
        ("u32", 1.0, "neither a tensor nor an integer"),
        ("f32", "x", "is not a number"),
        ("f32", True, "is not a number"),
        ("u32", SimpleNamespace(data_ptr=lambda: 0), "a tensor was given, which needs a pointer"),
        ("b8[4]", b"abc", "a structure; needed bytes, 4 in all, found 3 bytes"),
        ("b8[4]", 4, "found 4"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_by_its_number(kind: str, value: object, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"k: argument 0 is.*{said}"):
        arguments.pack("k", [kind], [value])
    with pytest.raises(TypeError, match="takes 1 arguments"):
        arguments.pack("k", [kind], [])


class FakeTensor:
    """What a kernel and a descriptor ask of a tensor."""

    def __init__(self, shape: tuple[int, ...] = (8, 64), stride: tuple[int, ...] = (64, 1)) -> None:
        import torch

        self.dtype, self.shape, self._stride = torch.bfloat16, shape, stride
        self.device = SimpleNamespace(type="cuda", index=1)

    def data_ptr(self) -> int:
        return 0xABC

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return 2

    def stride(self, dimension: int | None = None) -> Any:
        return self._stride if dimension is None else self._stride[dimension]


@pytest.mark.torch
def test_a_kernel_runs_on_the_device_and_stream_of_its_tensors(driver: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    image = Image("s", GpuTarget.parse("sm_90"), CudaVersion(13, 0), {"k<1>": Entry("_Z1k", ("u64", "f32"))}, b"code")
    (kernel,) = launch.kernels("ext", {0: [image], 1: [image]}).values()
    assert isinstance(kernel, Kernel) and repr(kernel) == "<kernel ext.k<1>(u64, f32)>" and kernel.usage() is None
    monkeypatch.setattr(launch, "_device", lambda name, values: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=70 + device))
    kernel((4,), (128,), FakeTensor(), 0.5, shared_bytes=50_000)
    assert driver.record().split(" ", 1)[1] == (
        "module(code) function(_Z1k) context(0) context(101) set(8, 50000) "
        "launch(4 1 1, 128 1 1, 50000, 71, abc, 0.5) context(0)"
    )
    kernel((0,), (128,), FakeTensor(), 0.5)
    assert driver.record() == "", "nothing to compute is nothing to launch"
    with pytest.raises(TypeError, match="takes 2 arguments"):
        kernel((1,), (1,), FakeTensor())
    monkeypatch.setattr(launch, "_device", lambda name, values: 5)
    with pytest.raises(KernelUnavailable, match="was not loaded for cuda:5"):
        kernel((1,), (1,), FakeTensor(), 0.5)
    with pytest.raises(KernelError, match=r"an entry point is defined twice\n  found   'k<1>' in "):
        launch.kernels("ext", {0: [image, image]})


@pytest.mark.torch
def test_tensors_of_other_devices_are_refused() -> None:
    import torch

    with pytest.raises(ValueError, match="k was given tensors on cpu; needed tensors of one CUDA device"):
        launch._device("k", [torch.ones(1), 2])
    with pytest.raises(ValueError, match="k was given no tensor; needed"):
        launch._device("k", [2])


@pytest.mark.torch
def test_a_descriptor_for_tma(driver: Fake) -> None:
    descriptor = tensor_map(FakeTensor(), (4, 32), swizzle_bytes=64, l2_bytes=256)  # type: ignore[arg-type]
    assert "map(9, 2, 0, 64 8, 128, 32 4, 1 1, 0 2 3 0)" in driver.record()
    assert bytes(descriptor) == b"*" * 128
    assert bytes(arguments.pack("k", ["b8[128]"], [descriptor])[0]) == b"*" * 128
    for tensor, box, how in (
        (FakeTensor(), (4,), {}),
        (FakeTensor(stride=(1, 8)), (4, 8), {}),
        (FakeTensor(), (4, 8), {"swizzle_bytes": 16}),
    ):
        with pytest.raises(
            ValueError, match=r"box is \(4,\); needed|stride 8; needed stride 1|swizzle_bytes is 16; needed"
        ):
            tensor_map(tensor, box, **how)  # type: ignore[arg-type]
