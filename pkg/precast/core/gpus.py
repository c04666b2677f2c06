"""Find this machine's GPUs and driver without creating a CUDA context, so that the process can still fork.

NVML forecasts what CUDA will show; the host library checks the device itself at its first use. Both libraries belong to
the driver: https://docs.nvidia.com/deploy/nvml-api and ``cuDriverGetVersion``, which needs no ``cuInit``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .capability import ComputeCapability
from .host import Gpu
from .value import value
from .version import CudaVersion

_NVML, _CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE


@value(frozen=True)
class Forecast:
    """The GPUs that CUDA is expected to show. ``certain`` is false if only CUDA itself can tell; ``note`` says why."""

    gpus: tuple[Gpu, ...]
    certain: bool
    note: str


def driver_version() -> CudaVersion | None:
    """The newest CUDA version that the installed driver supports; None without a driver."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL(_CUDA).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # AttributeError: a file of that name that is not the driver
        return None
    return None if failed or number.value <= 0 else CudaVersion.from_driver(number.value)


def of_driver() -> tuple[Gpu, ...] | None:
    """The GPUs in CUDA's numbering if CUDA is initialised in this process; None if it is not.

    After initialisation only the driver knows: it has read the environment, which may have changed since. torch.cuda
    counts by NVML and the environment even then (device_count, torch 2.11).
    """
    try:
        cuda = ctypes.CDLL(_CUDA)
        count = ctypes.c_int()
        if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:  # CUDA_ERROR_NOT_INITIALIZED; also in a forked child
            return None
        found = tuple(_gpu_of_driver(cuda, index) for index in range(count.value))
    except (OSError, AttributeError):  # no driver, or a driver too old for one of the functions
        return None
    return None if None in found else tuple(gpu for gpu in found if gpu is not None)


def _gpu_of_driver(cuda: ctypes.CDLL, index: int) -> Gpu | None:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(16)
    if (
        cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        or cuda.cuDeviceGetName(name, _NAME_BYTES, device)
        or cuda.cuDeviceGetUuid(uuid, device)
    ):
        return None
    digits = uuid.raw.hex()
    spelled = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    capability = ComputeCapability(major.value, minor.value)
    return Gpu(index, capability, name.value.decode(errors="replace"), f"GPU-{spelled}")


def forecast(visible_devices: str | None, device_order: str | None) -> Forecast:
    """The GPUs that a CUDA process would see under CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, in CUDA's order."""
    try:
        with _nvml() as nvml:
            physical, partitioned = _physical(nvml)
    except (_NvmlError, AttributeError) as error:  # AttributeError: this NVML lacks a function
        return Forecast((), certain=False, note=str(error))
    if partitioned:
        return Forecast((), certain=False, note="GPUs partitioned by MIG are only known to CUDA itself")
    chosen = select_visible(visible_devices, [gpu.uuid or "" for gpu in physical])
    gpus = tuple(_renumber(physical[old], new) for new, old in enumerate(chosen))
    # By default CUDA sorts by speed, which NVML does not know. Equal GPUs keep the PCI order that NVML uses.
    unlike = len({gpu.capability for gpu in physical}) > 1
    certain = device_order == "PCI_BUS_ID" or not unlike
    note = "" if certain else "unlike GPUs in an order only CUDA knows; CUDA_DEVICE_ORDER=PCI_BUS_ID settles it"
    return Forecast(gpus, certain, note)


def select_visible(text: str | None, uuids: Sequence[str]) -> list[int]:
    """The physical indices that CUDA_VISIBLE_DEVICES selects, in order. As in CUDA, a bad entry ends the list."""
    if text is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for token in (part.strip() for part in text.split(",")):
        index = _index_of(token, uuids)
        if index is None:
            break
        if index in chosen:  # on a duplicate CUDA refuses the whole list
            return []
        chosen.append(index)
    return chosen


def _index_of(token: str, uuids: Sequence[str]) -> int | None:
    if token.isascii() and token.isdigit():
        return int(token) if int(token) < len(uuids) else None
    matches = [i for i, uuid in enumerate(uuids) if token.startswith("GPU-") and uuid.startswith(token)]
    return matches[0] if len(matches) == 1 else None  # an abbreviated UUID must be unambiguous


def _renumber(gpu: Gpu, index: int) -> Gpu:
    return Gpu(index=index, capability=gpu.capability, name=gpu.name, uuid=gpu.uuid)


class _NvmlError(Exception):
    pass


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL]:
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError as error:
        raise _NvmlError(f"NVML ({_NVML}): {error}") from error
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _physical(nvml: ctypes.CDLL) -> tuple[list[Gpu], bool]:
    """Every GPU that this process may use, in PCI order, and whether any is partitioned by MIG."""
    count = ctypes.c_uint()
    _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
    gpus, partitioned = [], False
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue  # not accessible (container, lost device); CUDA does not show it either
        major, minor = ctypes.c_int(), ctypes.c_int()
        status = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
        _check(status, f"nvmlDeviceGetCudaComputeCapability of GPU {index}")
        capability = ComputeCapability(major.value, minor.value)
        name, uuid = (_text(getattr(nvml, f"nvmlDeviceGet{what}"), handle) for what in ("Name", "UUID"))
        gpus.append(Gpu(index=index, capability=capability, name=name or "", uuid=uuid))
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        if nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending)) == 0:
            partitioned |= mode.value == 1
    return gpus, partitioned


def _text(function: ctypes._NamedFuncPointer, handle: ctypes.c_void_p) -> str | None:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    return buffer.value.decode(errors="replace") if function(handle, buffer, _NAME_BYTES) == 0 else None


def _check(status: int, what: str) -> None:
    if status != 0:
        raise _NvmlError(f"NVML: {what} returned {status}")
