"""The GPUs a build can see, by the driver alone: no context, no torch. CUDA_VISIBLE_DEVICES has its usual effect."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from precast._abi.capability import ComputeCapability, GpuTarget, TargetKind

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def visible_gpus(library: str = "libcuda.so.1") -> tuple[ComputeCapability, ...]:
    """The capability of each visible GPU; none without a driver or with one that finds no GPU."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return ()
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for index in range(count.value):
        gpu, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        failed = (
            cuda.cuDeviceGet(ctypes.byref(gpu), index)
            or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, gpu)
            or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, gpu)
        )
        if not failed:
            found.append(ComputeCapability(major.value, minor.value))
    return tuple(found)


def target_for(gpu: ComputeCapability, known: Sequence[ComputeCapability]) -> GpuTarget:
    """SASS for a GPU that the compiler knows, else PTX of the newest one it knows below."""
    if gpu in known:
        return GpuTarget(TargetKind.SASS, gpu)
    below = [capability for capability in known if capability < gpu]
    return GpuTarget(TargetKind.PTX, max(below, default=gpu))
