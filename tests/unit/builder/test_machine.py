"""What a build on this machine is for: listed targets, GPUs that a driver shows, and the NVRTC that knows them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from precast._abi.settings import Settings
from precast._builder import machine, nvrtc
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.host import Nvrtc
from precast.errors import KernelError

KNOWN = tuple(ComputeCapability(*number) for number in ((6, 1), (7, 0), (9, 0)))
FOUND = Nvrtc("/opt/libnvrtc.so", None, "12.8", KNOWN, "torch")


@pytest.fixture
def build_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Nvrtc | None, tuple[GpuTarget, ...]]]:
    """``targets`` on a machine with these GPUs and this NVRTC."""

    def targets(
        arch_list: str | None, *gpus: ComputeCapability, found: Nvrtc | None = FOUND
    ) -> tuple[Nvrtc | None, tuple[GpuTarget, ...]]:
        monkeypatch.setattr(machine, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(nvrtc, "find_nvrtc", lambda *where: (found, ("here", "there")))
        return machine.targets(Settings(arch_list=arch_list))

    return targets


def test_nothing_to_build_for_is_said(build_on: Callable[..., object], capfd: pytest.CaptureFixture[str]) -> None:
    assert build_on(None) == (None, ())
    assert "no GPU is visible and PRECAST_CUDA_ARCH_LIST is not set" in capfd.readouterr().err


def test_no_nvrtc_is_said_with_where_it_was_sought(
    build_on: Callable[..., object], capfd: pytest.CaptureFixture[str]
) -> None:
    assert build_on("9.0", found=None) == (None, ())
    said = capfd.readouterr().err
    assert "no NVRTC was found" in said and "precast:   here\nprecast:   there\n" in said


def test_the_list_is_built_for_and_otherwise_each_kind_of_visible_gpu(build_on: Callable[..., object]) -> None:
    volta, hopper = ComputeCapability(7, 0), ComputeCapability(9, 0)
    assert build_on("7.0;9.0", hopper) == (FOUND, (GpuTarget.parse("sm_70"), GpuTarget.parse("sm_90")))
    assert build_on(None, hopper, volta, hopper) == (FOUND, (GpuTarget.parse("sm_90"), GpuTarget.parse("sm_70")))


# NVRTC knows 6.1, which is below what the kernels support; it does not know 8.0.
@pytest.mark.parametrize(("arch", "refused"), [("6.1", True), ("7.0", False), ("8.0", True), ("9.0", False)])
def test_a_target_must_be_known_to_nvrtc_and_new_enough_for_the_kernels(
    build_on: Callable[..., object], arch: str, refused: bool
) -> None:
    target = GpuTarget.parse(f"sm_{arch.replace('.', '')}")
    if not refused:
        assert build_on(arch) == (FOUND, (target,))
        return
    with pytest.raises(KernelError, match=rf"^device code for {target} cannot be built\n  found   NVRTC 12.8 \(/opt/l"):
        build_on(arch)


class Driver:
    """A CUDA driver with GPUs of these capabilities, and the status that each of its functions returns."""

    def __init__(self, *gpus: tuple[int, int], **status: int) -> None:
        self.gpus, self.status = gpus, status
        self.cuInit = lambda flags: status.get("cuInit", 0)

    def cuDeviceGetCount(self, count: ctypes._Pointer) -> int:  # noqa: N802 - the driver's name
        count._obj.value = len(self.gpus)
        return self.status.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, gpu: ctypes._Pointer, index: int) -> int:  # noqa: N802
        gpu._obj.value = index
        return self.status.get("cuDeviceGet", 0) if index == 0 else 0

    def cuDeviceGetAttribute(self, number: ctypes._Pointer, attribute: int, gpu: ctypes.c_int) -> int:  # noqa: N802
        # cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75, _MINOR = 76
        number._obj.value = {75: self.gpus[gpu.value][0], 76: self.gpus[gpu.value][1]}[attribute]
        return self.status.get(f"attribute {attribute}", 0) if gpu.value == 0 else 0


@pytest.mark.parametrize(
    ("driver", "visible"),
    [
        (Driver((9, 0), (8, 6)), ["9.0", "8.6"]),
        (Driver(), []),
        (Driver((9, 0), cuInit=100), []),
        (Driver((9, 0), cuDeviceGetCount=3), []),
        (Driver((9, 0), (8, 6), cuDeviceGet=101), ["8.6"]),
        (Driver((9, 0), (8, 6), **{"attribute 75": 1}), ["8.6"]),
        (Driver((9, 0), (8, 6), **{"attribute 76": 1}), ["8.6"]),
    ],
)
def test_each_gpu_that_answers_is_visible(monkeypatch: pytest.MonkeyPatch, driver: Driver, visible: list[str]) -> None:
    monkeypatch.setattr(
        machine, "ctypes", SimpleNamespace(CDLL=lambda name: driver, c_int=ctypes.c_int, byref=ctypes.byref)
    )
    assert [str(capability) for capability in machine.visible_gpus()] == visible
