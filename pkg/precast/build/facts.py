"""What the bytes of a library say it is bound to. The build writes it into the manifest; the audit derives it again."""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from dataclasses import dataclass

from precast._abi.build_info import HostFile
from precast._abi.host import TorchInfo
from precast._abi.torch_abi import CLASSIC_FLOOR, Exact, Stable, TorchAbi, is_git_version
from precast._abi.version import Release
from precast._builder import elf
from precast.errors import KernelError

# A mangled name out of torch's classic C++: it is in one minor what it need not be in the next. `torch::stable` and
# `torch::headeronly` are compiled into whoever uses them.
_CLASSIC = re.compile(r"N[KVrRO]*(?:2at|3c10|6caffe2|5torch(?!6stable|10headeronly))(?=\d|[A-Z])")
# The names of Python's C interface, and what comes of pybind11.
_PYTHON = re.compile(r"_?Py[A-Z_]\w*|THP\w+")
_CUDART = re.compile(r"libcudart\.so\.(\d+)")
_TORCH_CUDA = {"libtorch_cuda.so", "libc10_cuda.so"}
# What nothing but a C++ runtime defines: that of GCC, and that of LLVM.
_OF_A_RUNTIME = {"__cxa_throw", "__gxx_personality_v0"}


@dataclass(frozen=True, slots=True)
class Binding:
    """What a library needs of a process: torch's classic C++, Python, a CUDA runtime; each found in its bytes."""

    classic: tuple[str, ...]
    python: tuple[str, ...]
    cudart: int | None
    torch_cuda: bool

    @property
    def names_of_python(self) -> tuple[str, ...]:
        """The functions of Python that it calls; libraries of Python and libtorch_python are only linked."""
        return tuple(name for name in self.python if not name.startswith("lib"))


def brings_runtime(info: elf.ElfInfo) -> bool:
    """Whether a C++ runtime is linked into a library, and its names are open to others.

    Half of it is then this one and half that of the process: they count the kinds of a locale differently, and printing
    a number, as every check of torch's does that fails, prints nothing or ends the process.
    """
    return not _OF_A_RUNTIME.isdisjoint(info.exported)


def binding(info: elf.ElfInfo) -> Binding:
    """Read it out of the symbols that are missing and the libraries that are named."""
    classic = sorted(name for name in info.undefined if name.startswith("_Z") and _CLASSIC.search(name))
    python = sorted(name for name in info.undefined if _PYTHON.fullmatch(name))
    runtimes = [int(match[1]) for name in info.needed if (match := _CUDART.fullmatch(name))]
    python += [name for name in info.needed if name.startswith(("libpython", "libtorch_python"))]
    return Binding(tuple(classic), tuple(python), max(runtimes, default=None), not _TORCH_CUDA.isdisjoint(info.needed))


def python_tag(*, limited: bool) -> str:
    """What a module that names Python is bound to: ``abi3``, or this very Python, such as ``cp312`` or ``cp313t``."""
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return "abi3" if limited else f"cp{sys.version_info.major}{sys.version_info.minor}{threads}"


def torch_abi(torch: TorchInfo) -> Exact:
    """The classic ABI of this torch: its minor, or, for what is no release, its commit."""
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
    """The manifest entry of a library; KernelError where its bytes contradict what it was declared to be.

    ``stable``: the floor it was compiled for, None for classic C++; ``limited``: Python's limited API alone.
    """
    try:
        info = elf.read_shared_object(data)
    except elf.ElfError as error:
        raise KernelError(f"{name}: the compiler made no usable library: {error}") from error
    if brings_runtime(info):
        raise KernelError(
            f"{name} has a C++ runtime of its own\n"
            f"  found   {', '.join(sorted(_OF_A_RUNTIME & info.exported))} in it: libstdc++ is linked statically\n"
            f"  needed  the runtime that torch has, libstdc++.so.6: with two, a failed check of torch's is a crash\n"
            f"  fix     1) CC=gcc CXX=g++ pip install --no-build-isolation ."
            f"  # without -static-libstdc++, and with a compiler that has a libstdc++.so beside its libstdc++.a"
        )
    bound = binding(info)
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
        python=python_tag(limited=limited) if needs_python(name, info, bound) else "none",
        cuda_major=_cuda_major(name, bound, torch),
        debug=debug,
    )


def needs_python(name: str, info: elf.ElfInfo, bound: Binding) -> bool:
    """Whether a library is a Python module, or calls Python: pybind11's headers do, even if they are not used."""
    return f"PyInit_{name.rpartition('.')[2]}" in info.exported or bool(bound.names_of_python)


def _abi(name: str, info: elf.ElfInfo, bound: Binding, stable: Stable | None, torch: TorchInfo | None) -> TorchAbi:
    """What names nothing of torch is bound to none; the rest to the floor it was compiled for, or to one torch."""
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
