"""The only place that looks at the world: system, torch, driver, GPUs, compilers. Everyone else takes its ``Host``.

Nothing here creates a CUDA context, writes a file or raises for what is missing: a missing thing is a fact of the host.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from precast._abi.capability import ComputeCapability
from precast._abi.host import Builders, Gpu, Host, TorchInfo
from precast._abi.settings import Settings
from precast._abi.version import CudaVersion, Release, TorchVersion
from precast.errors import KernelError

_GLIBCXX = b"\0GLIBCXX_"


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; a bad value is an error that names the variable."""
    try:
        return Settings.from_env(os.environ if environ is None else environ)
    except ValueError as error:
        raise KernelError(str(error)) from error


def probe_host(settings: Settings, *, gpus: bool, certain: bool = False) -> Host:
    """The host as it is now, builders not looked for. ``certain`` initialises torch.cuda where NVML cannot tell."""
    torch, torch_info, torch_error = _probe_torch()
    driver, found = _probe_gpus(torch, settings, certain) if gpus else (None, ())
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        python=Release(sys.version_info.major, sys.version_info.minor),
        glibc=_glibc(),
        glibcxx=_glibcxx(),
        torch=torch_info,
        torch_error=torch_error,
        driver=driver,
        gpus=found,
        builders=None,
    )


def probe_builders(settings: Settings) -> Builders:
    """What could build here: a C++ compiler, ninja, NVRTC; and where each was looked for."""
    from precast._build import nvrtc, toolchain  # not needed, and not imported, while a prebuilt fits

    compiler, compiler_places = toolchain.find_compiler(settings)
    ninja, ninja_places = toolchain.find_ninja()
    found, nvrtc_places = nvrtc.find_nvrtc(torch_lib_dir(), settings.cuda_home, None)
    return Builders(compiler, ninja, found, looked_at=(*compiler_places, *ninja_places, *nvrtc_places))


def current_gpu() -> int | None:
    """The current GPU of torch, which this initialises; None where torch can use none."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else None


def _probe_torch() -> tuple[ModuleType | None, TorchInfo | None, str | None]:
    if importlib.util.find_spec("torch") is None:
        return None, None, None
    try:
        import torch

        info = TorchInfo(
            version=TorchVersion.parse(str(torch.__version__), git=torch.version.git_version),
            cxx11=bool(torch.compiled_with_cxx11_abi()),
            cuda=CudaVersion.parse(torch.version.cuda) if torch.version.cuda else None,
            hip=torch.version.hip,
        )
    # What a broken installation raises: a missing library, a file cut short, the empty folder of an old one, a
    # version string nobody can read.
    except (ImportError, OSError, AttributeError, SyntaxError, ValueError) as error:
        return None, None, f"{type(error).__name__}: {error}"
    return torch, info, None


def _glibc() -> Release | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION")  # "glibc 2.36"; musl and other systems do not know the name
    except (ValueError, OSError, AttributeError):
        return None
    match = re.match(r"glibc (\d+)\.(\d+)", text or "")
    return Release(int(match[1]), int(match[2])) if match else None


def _glibcxx() -> str | None:
    """The newest GLIBCXX version of the libstdc++ mapped here, the one a library of ours would bind to.

    It is not opened when it is not mapped: whichever libstdc++ comes first stays, and torch may bring its own.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        at = maps.find("/libstdc++.so.6")
        if at < 0:
            return None
        line = maps[maps.rfind("\n", 0, at) + 1 : maps.find("\n", at)]
        with (
            Path(line.split(maxsplit=5)[5]).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            versions = list(_glibcxx_versions(content))
    except OSError:
        return None
    return ".".join(str(part) for part in max(versions)) if versions else None


def _glibcxx_versions(content: mmap.mmap) -> Iterator[tuple[int, ...]]:
    """Every version defined in a libstdc++, by fixed text: a regular expression takes 3 ms for its two megabytes."""
    at = content.find(_GLIBCXX)
    while at >= 0:
        start = at + len(_GLIBCXX)
        version = re.match(rb"3\.4(?:\.\d+)?(?=\0)", content[start : start + 16])
        if version:
            yield tuple(int(part) for part in version[0].split(b"."))
        at = content.find(_GLIBCXX, start)


def _probe_gpus(
    torch: ModuleType | None, settings: Settings, certain: bool
) -> tuple[CudaVersion | None, tuple[Gpu, ...]]:
    from precast._load import gpus

    driver = gpus.driver_version()
    return driver, () if driver is None else _gpus(torch, settings, certain)


def _gpus(torch: ModuleType | None, settings: Settings, certain: bool) -> tuple[Gpu, ...]:
    from precast._load import gpus

    if torch is not None and torch.cuda.is_initialized():
        return _gpus_of_torch(torch)
    forecast = gpus.forecast(settings.visible_devices, settings.device_order)
    if forecast.certain or not certain or torch is None or not torch.cuda.is_available():
        return forecast.gpus
    torch.cuda.init()
    return _gpus_of_torch(torch)


def _gpus_of_torch(torch: ModuleType) -> tuple[Gpu, ...]:
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        capability = ComputeCapability(properties.major, properties.minor)
        found.append(Gpu(index, capability, properties.name, None if uuid is None else f"GPU-{uuid}"))
    return tuple(found)


def torch_lib_dir() -> Path | None:
    """The folder of torch's own libraries, found without importing it."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) / "lib" if folders else None
