"""Look at the process for a choice: system, torch, driver, GPUs, C and C++ library, processor.

Nothing here creates a CUDA context, writes a file, or raises for a missing thing: that is a fact of the host.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import platform
import re
import struct
import sys
from pathlib import Path
from types import ModuleType

from .capability import ComputeCapability
from .host import Gpu, Host, TorchInfo
from .version import CudaVersion, Release, TorchVersion, dotted

_GLIBCXX = rb"\0GLIBCXX_(3\.4(?:\.\d+)?)(?=\0)"
_RTLD_DI_LINKMAP = 2  # dlinfo(3)
# The errors that the import of a broken torch raises: a missing library, a truncated file, the empty folder left by an
# old torch, a mix of two versions, an unreadable version string, or a failed check of torch's own.
_BROKEN = (
    *(ImportError, OSError, AttributeError, SyntaxError, ValueError, RuntimeError, TypeError, NameError, LookupError),
    *(AssertionError, ArithmeticError, EOFError, SystemError, BufferError),
)
_SHT_STRTAB, _SHF_ALLOC = 3, 2  # elf(5)
_PR_SVE_GET_VL, _PR_SVE_VL_LEN_MASK = 51, 0xFFFF  # linux/prctl.h


class _LinkMap(ctypes.Structure):
    """The first fields of ``struct link_map`` (link.h), the dynamic linker's record of a mapped file."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def host(*, with_gpus: bool, certain: bool = False) -> Host:
    """This process. ``certain`` may initialise torch.cuda where NVML cannot tell."""
    torch, torch_info, torch_error = _probe_torch()
    driver, found = _probe_gpus(torch, certain) if with_gpus else (None, ())
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
            xpu=getattr(torch.version, "xpu", None),
        )
    except _BROKEN as error:
        return None, None, f"{type(error).__name__}: {error}"
    return torch, info, None


def _glibc() -> Release | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION")  # "glibc 2.36"; unknown to musl and to other systems
        return Release(*dotted((text or "").removeprefix("glibc "))[:2])
    except (ValueError, OSError, AttributeError):
        return None


def _glibcxx() -> str | None:
    """The newest GLIBCXX version of the mapped libstdc++, to which a library of ours would bind.

    libstdc++ is not opened if it is not mapped: the first one that is opened stays, and torch may bring its own.
    """
    path = _mapped_from("libstdc++.so.6")
    if path is None:
        return None
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            versions = re.compile(_GLIBCXX).findall(content, *_dynamic_names(content))
    except (OSError, ValueError, struct.error):  # the file was emptied or replaced by a shorter one after the mapping
        return None
    return max(map(bytes.decode, versions), key=dotted, default=None)


def _mapped_from(soname: str) -> Path | None:
    """The file that a library of this process was mapped from; None, without mapping it, if it is not mapped."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(soname, mode=os.RTLD_NOLOAD)
    except OSError:
        return None
    found = ctypes.POINTER(_LinkMap)()
    if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(found)) != 0:
        return None
    return Path(os.fsdecode(found.contents.name))


def _dynamic_names(content: mmap.mmap) -> tuple[int, int]:
    """The range of the dynamic string table in a 64-bit ELF file (elf(5)), which names its symbols and versions.

    It is a seventh of a libstdc++; searching the whole file takes 1 ms.
    """
    (table,) = struct.unpack_from("<Q", content, 40)  # e_shoff
    size, count = struct.unpack_from("<HH", content, 58)  # e_shentsize, e_shnum
    for section in range(table, table + size * count, size):
        kind, flags = struct.unpack_from("<IQ", content, section + 4)  # sh_type, sh_flags
        if kind == _SHT_STRTAB and flags & _SHF_ALLOC:
            start, length = struct.unpack_from("<QQ", content, section + 24)  # sh_offset, sh_size
            return start, start + length
    return 0, 0


def _probe_gpus(torch: ModuleType | None, certain: bool) -> tuple[CudaVersion | None, tuple[Gpu, ...]]:
    from . import gpus  # most libraries have no device code

    driver = gpus.driver_version()
    return driver, () if driver is None else _gpus(torch, certain)


def _gpus(torch: ModuleType | None, certain: bool) -> tuple[Gpu, ...]:
    from . import gpus

    shown = gpus.of_driver()
    if shown is not None:
        return shown
    if torch is not None and torch.cuda.is_initialized():
        return _gpus_of_torch(torch)
    forecast = gpus.forecast(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    if forecast.certain or not certain or torch is None or not torch.cuda.is_available():
        return forecast.gpus
    torch.cuda.init()
    return gpus.of_driver() or _gpus_of_torch(torch)


def _gpus_of_torch(torch: ModuleType) -> tuple[Gpu, ...]:
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        capability = ComputeCapability(properties.major, properties.minor)
        found.append(Gpu(index, capability, properties.name, None if uuid is None else f"GPU-{uuid}"))
    return tuple(found)


def cpu_features() -> frozenset[str]:
    """The features that the processor has and the kernel enables, as in /proc/cpuinfo; empty without that file.

    For an ARM processor with SVE this includes its vector length, such as "sve256".
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    found = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset((*found.split(), *_sve()))


def _sve() -> tuple[str, ...]:
    """The SVE vector length of this process, which cpuinfo does not show; empty without SVE or outside aarch64."""
    if platform.machine() != "aarch64":
        return ()
    length: int = ctypes.CDLL(None).prctl(_PR_SVE_GET_VL)
    return (f"sve{(length & _PR_SVE_VL_LEN_MASK) * 8}",) if length > 0 else ()
