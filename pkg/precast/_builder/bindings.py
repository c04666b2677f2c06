"""What a library needs from its process, derived from its bytes: torch's classic C++, Python, a CUDA runtime."""

from __future__ import annotations

import re
from dataclasses import dataclass

from precast._builder import elf

# A mangled name of torch's classic C++, which may change with each minor release. `torch::stable` and
# `torch::headeronly` are excluded because they are compiled into the library that uses them.
_CLASSIC = re.compile(r"N[KVrRO]*(?:2at|3c10|6caffe2|5torch(?!6stable|10headeronly))(?=\d|[A-Z])")
# Names of Python's C API, and those that pybind11 code needs.
_PYTHON = re.compile(r"_?Py[A-Z_]\w*|THP\w+")
_CUDART = re.compile(r"libcudart\.so\.(\d+)(?:\.\d+)*")
_TORCH_CUDA = {"libtorch_cuda.so", "libc10_cuda.so"}
# Symbols that only a C++ runtime defines, GCC's or LLVM's.
OF_A_RUNTIME = {"__cxa_throw", "__gxx_personality_v0"}


@dataclass(frozen=True, slots=True)
class Binding:
    """What a library needs from its process, as found in its bytes: torch's classic C++, Python, a CUDA runtime."""

    classic: tuple[str, ...]
    python: tuple[str, ...]
    cudart: int | None
    torch_cuda: bool

    @property
    def names_of_python(self) -> tuple[str, ...]:
        """The Python functions that the library calls, without the Python libraries that it only links."""
        return tuple(name for name in self.python if not name.startswith("lib"))


def brings_runtime(info: elf.ElfInfo) -> bool:
    """Whether a C++ runtime is linked into a library and its symbols are exported.

    The process then mixes this runtime with its own, and the two number the facets of a locale differently. Formatting
    a number, as every failing check in torch does, then prints nothing or ends the process.
    """
    return not OF_A_RUNTIME.isdisjoint(info.exported)


def binding(info: elf.ElfInfo) -> Binding:
    """Derive the binding from the undefined symbols and the needed libraries."""
    classic = sorted(name for name in info.undefined if name.startswith("_Z") and _CLASSIC.search(name))
    python = sorted(name for name in info.undefined if _PYTHON.fullmatch(name))
    runtimes = [int(match[1]) for name in info.needed if (match := _CUDART.fullmatch(name))]
    python += [name for name in info.needed if name.startswith(("libpython", "libtorch_python"))]
    return Binding(tuple(classic), tuple(python), max(runtimes, default=None), not _TORCH_CUDA.isdisjoint(info.needed))


def needs_python(name: str, info: elf.ElfInfo, bound: Binding) -> bool:
    """Whether a library is a Python module, or calls Python: pybind11's headers do, even if they are not used."""
    return f"PyInit_{name.rpartition('.')[2]}" in info.exported or bool(bound.names_of_python)
