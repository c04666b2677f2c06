"""The GPUs of a machine: what NVML says, and what CUDA_VISIBLE_DEVICES makes of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.core import gpus
from precast.core.version import CudaVersion

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0,1,2", [0, 1, 2]),
        ("2, 0", [2, 0]),
        ("1", [1]),
        ("-1", []),
        ("1,-1,0", [1]),  # what follows the first bad entry is hidden
        ("1,7,0", [1]),
        ("0,x,1", [0]),
        ("0,0", []),  # CUDA refuses a list that names a GPU twice
        ("GPU-cccc-3,GPU-aaaa-1", [2, 0]),
        ("GPU-cc", [2]),
        ("GPU-aa", []),  # not one GPU only
        ("GPU-zzzz", []),
        ("MIG-cccc", []),
        ("\u0661", []),  # a digit, but not one CUDA reads
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, chosen: list[int]) -> None:
    assert gpus.select_visible(text, UUIDS) == chosen


class Driver:
    """A CUDA driver with one GPU; ``statuses`` has what a function returns if it fails."""

    def __init__(self, count: int, **statuses: int) -> None:
        self.count, self.statuses = count, statuses

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.count  # type: ignore[attr-defined]
            if name == "cuDeviceGetAttribute":  # cuda.h: 75 is the major number of the compute capability, 76 the minor
                arguments[0]._obj.value = {75: 9, 76: 4}[arguments[1]]  # type: ignore[attr-defined, index]
            if name == "cuDeviceGetName":
                arguments[0].value = b"A model"  # type: ignore[attr-defined]
            if name == "cuDeviceGetUuid":
                ctypes.memmove(arguments[0], bytes(range(16)), 16)  # type: ignore[arg-type]
            return self.statuses.get(name, 0)

        return call


def driver(monkeypatch: pytest.MonkeyPatch, count: int, **statuses: int) -> None:
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: Driver(count, **statuses))


def test_a_started_driver_is_asked_for_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, 2)
    found = gpus.of_driver()
    assert found is not None
    uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert [(gpu.index, gpu.name, str(gpu.capability), gpu.uuid) for gpu in found] == [
        (0, "A model", "9.4", uuid),
        (1, "A model", "9.4", uuid),
    ]
    driver(monkeypatch, 0)
    assert gpus.of_driver() == ()


@pytest.mark.parametrize("status", [1, 3])
@pytest.mark.parametrize(
    "function", ["Count", "", "Attribute", "Name", "Uuid"], ids=lambda function: f"cuDeviceGet{function}"
)
def test_a_driver_that_does_not_answer_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, function: str, status: int
) -> None:
    driver(monkeypatch, 1, **{f"cuDeviceGet{function}": status})
    assert gpus.of_driver() is None


@pytest.fixture
def machine(fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(gpus, "_NVML", str(fake_nvml))
    return monkeypatch


@pytest.mark.compiler
def test_visible_gpus_get_the_indices_torch_gives_them(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("GPUS", "9.0/GPU-a/0 9.0/GPU-b/0 9.0/GPU-c/0")
    forecast = gpus.forecast("2,0", None)
    assert [(gpu.index, gpu.uuid, str(gpu.capability), gpu.name) for gpu in forecast.gpus] == [
        (0, "GPU-c", "9.0", "Model 9"),
        (1, "GPU-a", "9.0", "Model 9"),
    ]
    assert forecast.certain


@pytest.mark.compiler
def test_unlike_gpus_are_certain_in_bus_order_only(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("GPUS", "8.0/GPU-a/0 9.0/GPU-b/0")
    assert gpus.forecast(None, "PCI_BUS_ID").certain
    guess = gpus.forecast(None, None)
    assert not guess.certain and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in guess.note
    assert [str(gpu.capability) for gpu in guess.gpus] == ["8.0", "9.0"]


@pytest.mark.compiler
def test_a_gpu_this_process_may_not_use_is_left_out(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("GPUS", "0.0/GPU-a/0 9.0/GPU-b/0")
    assert [gpu.uuid for gpu in gpus.forecast(None, None).gpus] == ["GPU-b"]


@pytest.mark.compiler
def test_partitioned_gpus_are_not_guessed_at(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("GPUS", "9.0/GPU-a/1")
    forecast = gpus.forecast(None, None)
    assert forecast.gpus == () and not forecast.certain and "MIG" in forecast.note


@pytest.mark.compiler
def test_an_nvml_that_fails_is_named_with_its_status(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("GPUS", "nonsense")
    forecast = gpus.forecast(None, None)
    assert forecast.gpus == () and "nvmlInit returned 9" in forecast.note


def test_a_machine_without_nvml_says_which_library_it_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_NVML", "libnvidia-ml-not-here.so.1")
    forecast = gpus.forecast(None, None)
    assert forecast.gpus == () and not forecast.certain and "libnvidia-ml-not-here.so.1" in forecast.note


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("number", "version"), [("13000", CudaVersion(13, 0)), ("12040", CudaVersion(12, 4)), ("0", None)]
)
def test_the_driver_is_asked_for_its_cuda_version(
    fake_libcuda: Path, monkeypatch: pytest.MonkeyPatch, number: str, version: CudaVersion | None
) -> None:
    monkeypatch.setattr(gpus, "_CUDA", str(fake_libcuda))
    monkeypatch.setenv("DRIVER", number)
    assert gpus.driver_version() == version


def test_no_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_CUDA", "libcuda-not-here.so.1")
    assert gpus.driver_version() is None
