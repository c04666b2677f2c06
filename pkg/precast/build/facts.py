"""Find in a library's bytes what it is bound to. The build records this in the manifest; the audit derives it again."""

from __future__ import annotations

import hashlib
import sys
import sysconfig

from precast._abi.build_info import HostFile
from precast._abi.host import TorchInfo
from precast._abi.torch_abi import CLASSIC_FLOOR, Exact, Stable, TorchAbi, is_git_version
from precast._abi.version import Release
from precast._builder import bindings, elf, xray
from precast._builder.bindings import Binding
from precast.errors import KernelError


def python_tag(*, limited: bool) -> str:
    """The tag of a module that uses Python: ``abi3``, or this exact Python, such as ``cp312`` or ``cp313t``."""
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return "abi3" if limited else f"cp{sys.version_info.major}{sys.version_info.minor}{threads}"


def torch_abi(torch: TorchInfo) -> Exact:
    """The classic ABI of this torch: its minor release, or its commit for a prerelease."""
    if not torch.version.is_prerelease:
        return Exact(torch.version.release, torch.cxx11)
    if not is_git_version(torch.version.git):
        raise KernelError(
            f"a module for torch {torch.version} cannot be told from one for another commit\n"
            f"  found   a pre-release whose git version is {torch.version.git or 'not known'}\n"
            f"  needed  a release of torch, or one that says its commit"
        )
    return Exact(torch.version.release, torch.cxx11, torch.version.git)


def host_file(
    name: str, path: str, data: bytes, *, stable: Stable | None, limited: bool, torch: TorchInfo | None, debug: bool
) -> HostFile:
    """Return the manifest entry of a library; raise KernelError if its bytes contradict its declaration.

    ``stable`` is the floor it was compiled for, None for classic C++. ``limited``: it uses only Python's limited API.
    """
    try:
        info = elf.read_shared_object(data)
    except elf.ElfError as error:
        raise KernelError(f"{name}: the compiler made no usable library: {error}") from error
    if bindings.brings_runtime(info):
        raise KernelError(
            f"{name} has a C++ runtime of its own\n"
            f"  found   {', '.join(sorted(bindings.OF_A_RUNTIME & info.exported))}: libstdc++ is linked statically\n"
            f"  needed  the runtime that torch has, libstdc++.so.6: with two, a failed check of torch crashes\n"
            f"  fix     1) CC=gcc CXX=g++ pip install --no-build-isolation ."
            f"  # without -static-libstdc++, and with a compiler that has a libstdc++.so next to its libstdc++.a"
        )
    bound = bindings.binding(info)
    if stable is not None and (bound.classic or bound.cudart):
        found = ", ".join(bound.classic[:3]) or f"libcudart.so.{bound.cudart}"
        raise KernelError(
            f"{name} is not on torch's stable ABI\n"
            f"  found   {found}\n"
            f"  needed  what torch/csrc/stable and the C shims offer, without a CUDA runtime\n"
            f"  fix     1) a CppExtension or CUDAExtension, for one torch"
        )
    return HostFile(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        abi=_abi(name, info, bound, stable, torch),
        machine=info.machine,
        needed=info.needed,
        glibc=Release(*(*info.glibc, 0, 0)[:2]),
        glibcxx=".".join(map(str, info.glibcxx or (3, 4))),
        cpu_levels=(),
        families=(name.rpartition(".")[2],),
        python=python_tag(limited=limited) if bindings.needs_python(name, info, bound) else "none",
        cuda_major=_cuda_major(name, bound, torch),
        debug=debug,
        **xray.inside(data, info),
    )


def _abi(name: str, info: elf.ElfInfo, bound: Binding, stable: Stable | None, torch: TorchInfo | None) -> TorchAbi:
    """A library without torch symbols fits every torch; any other is bound to its floor or to one torch."""
    shims = any(symbol.startswith(("aoti_torch_", "torch_")) for symbol in info.undefined)
    if not bound.classic and not shims and not any(needed.startswith(("libtorch", "libc10")) for needed in info.needed):
        return Stable(CLASSIC_FLOOR)
    if stable is not None:
        return stable
    if torch is None:
        named = (*bound.classic, *info.needed)[0]
        raise KernelError(f"{name} needs {named}, and there is no torch to say of which")
    return torch_abi(torch)


def _cuda_major(name: str, bound: Binding, torch: TorchInfo | None) -> int | None:
    of_torch = None if torch is None or torch.cuda is None else torch.cuda.major
    if bound.cudart is not None and torch is not None and bound.cudart != of_torch:
        raise KernelError(
            f"{name} mixes two CUDA runtimes\n"
            f"  found   libcudart.so.{bound.cudart}, and a torch with CUDA {of_torch or 'none'}\n"
            f"  needed  the nvcc of torch's CUDA major\n"
            f"  fix     1) CUDA_HOME=/usr/local/cuda-{of_torch or 'X'} pip install --no-build-isolation ."
        )
    return bound.cudart if bound.cudart is not None else of_torch if bound.torch_cuda else None
