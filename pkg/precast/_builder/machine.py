"""The targets and the NVRTC of a CUDA_EXT=1 build: the GPUs here, found by the driver alone (no context, no torch)."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import nvrtc
from precast.core.capability import MINIMUM_CAPABILITY, ComputeCapability, GpuTarget, TargetKind
from precast.core.host import Nvrtc
from precast.core.torch_abi import STABLE_FLOOR
from precast.core.version import TorchVersion
from precast.errors import KernelError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def targets(settings: Settings) -> tuple[Nvrtc | None, tuple[GpuTarget, ...]]:
    """The NVRTC and the targets for device code on this machine; without either the wheel has only the host library."""
    listed = settings.targets()
    visible = () if listed else visible_gpus()
    if not listed and not visible:
        say("no GPU is visible and PRECAST_CUDA_ARCH_LIST is not set: no device code is built ahead of time")
        return None, ()
    spec = importlib.util.find_spec("torch")
    place = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    found, looked_at = nvrtc.find_nvrtc(Path(place) / "lib" if place else None, settings.cuda_home, None)
    if found is None:
        say("no NVRTC was found, so no device code is built ahead of time. Looked at:")
        for line in looked_at:
            say(f"  {line}")
        say("give it one: pip install --no-build-isolation (with a torch for CUDA installed), or set CUDA_HOME")
        return None, ()
    wanted = listed or tuple(dict.fromkeys(target_for(capability, found.targets) for capability in visible))
    unknown = [target for target in wanted if not _can_compile(target, found)]
    if unknown:
        known = " ".join(str(target) for target in wanted if target not in unknown)
        raise KernelError(
            f"device code for {', '.join(map(str, unknown))} cannot be built",
            found=f"NVRTC {found.version} ({found.path}), which knows {_names(found)}",
            needed=f"targets it knows, from compute capability {MINIMUM_CAPABILITY} on",
            fix=f"export PRECAST_CUDA_ARCH_LIST={shlex.quote(known)}" if known else "unset PRECAST_CUDA_ARCH_LIST",
        )
    return found, wanted


def _can_compile(target: GpuTarget, found: Nvrtc) -> bool:
    return target.capability in found.targets and target.capability >= MINIMUM_CAPABILITY


def _names(found: Nvrtc) -> str:
    return " ".join(str(capability) for capability in found.targets)


def torch_note() -> str:
    """A sentence about the torch that the build can see, and whether it needs an adapter."""
    adapter = f"torch below {STABLE_FLOOR} also needs an adapter, which g++ builds at the first use of a kernel"
    if importlib.util.find_spec("torch") is None:
        return f"no torch here (build isolation hides it): {adapter}"
    try:
        torch = TorchVersion.parse(importlib.metadata.version("torch"))
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        return f"the torch here does not say its version ({error}): {adapter}"
    return f"torch {torch} has every function itself" if torch.release >= STABLE_FLOOR else f"torch {torch}: {adapter}"


def say(line: str) -> None:
    """Print a line for the user who watches the build (pip shows it with -v)."""
    print(f"precast: {line}", file=sys.stderr, flush=True)


def visible_gpus(library: str = "libcuda.so.1") -> tuple[ComputeCapability, ...]:
    """The capability of each visible GPU; empty if there is no driver or it finds no GPU."""
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
    """SASS for a GPU that the compiler knows, otherwise PTX of the newest older capability that it knows."""
    if gpu in known:
        return GpuTarget(TargetKind.SASS, gpu)
    below = [capability for capability in known if capability < gpu]
    return GpuTarget(TargetKind.PTX, max(below, default=gpu))
