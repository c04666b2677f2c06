"""The guard of undefined symbols: every torch that a host library claims has the symbols that the library needs.

A stable library may use only the C functions that precast's header of torch's C interface declares for its floor. A
classic library is compared with the symbols of its torch, either of an installed torch or from a recorded list.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from precast._abi.torch_abi import Exact, Stable, TorchAbi
from precast._abi.version import Release
from precast._abi.violation import Violation
from tools.guards.subject import Audited
from tools.shared import binaries

DECLARATIONS = "precast/csrc/common/torch_c.h"
_DECLARED = re.compile(r"^PRECAST_(?:WEAK_|(CUDA_))?SINCE\((\d+), (\d+)\)[^;(]*?(\w+)\(", re.MULTILINE)
# Weak references from the C runtime's start files, which every library has and which need no definition.
_RUNTIME = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
_VERSIONED = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
# The libraries of an installed torch that a classic library may link, including torch's OpenMP runtime.
LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch.so", "libgomp*.so*")


def check_symbols(a: Audited) -> Iterator[Violation]:
    """Check each library by the rules of its torch ABI."""
    functions = declared(a.wheel.files.get(DECLARATIONS, b"").decode("utf-8"))
    for file in a.info.host:
        facts = a.libraries.get(file.path)
        if facts is None:
            continue  # the manifest guard reports it
        asked = asked_of_torch(facts)
        if isinstance(file.abi, Stable):
            yield from _stable(file.path, file.abi, asked, functions)
        else:
            yield from _classic(file.path, file.abi, asked, a.asked.torch_lists)


def asked_of_torch(facts: binaries.LibraryFacts) -> list[binaries.Undefined]:
    """The undefined symbols that the system does not define."""
    return [symbol for symbol in facts.undefined if not _of_the_system(symbol)]


def _of_the_system(symbol: binaries.Undefined) -> bool:
    """Whether the C or C++ runtime defines the symbol; the glibc guard checks its version."""
    if symbol.version is not None:
        return _VERSIONED.fullmatch(symbol.version) is not None
    return symbol.weak and symbol.name in _RUNTIME


def _stable(
    path: str, abi: Stable, asked: Iterable[binaries.Undefined], functions: Mapping[str, Release | None]
) -> Iterator[Violation]:
    """A weak reference may name a newer function, because the code then checks whether it exists."""
    for symbol in asked:
        if symbol.name not in functions:
            yield Violation("symbol", path, f"functions that {DECLARATIONS} declares", str(symbol))
            continue
        since = functions[symbol.name]
        if since is None:
            yield Violation("symbol", path, "nothing that CPU builds of torch lack", f"{symbol}, of its CUDA part")
        elif since > abi.floor and not symbol.weak:
            yield Violation("symbol", path, f"functions that torch {abi.floor} has", f"{symbol}, since torch {since}")


def _classic(path: str, abi: Exact, asked: Iterable[binaries.Undefined], lists: Path) -> Iterator[Violation]:
    known = exported_by(abi, lists)
    if known is None:
        wanted = f"a list of what torch {abi.release} exports (python -m tools prove-classic)"
        yield Violation("symbol", path, wanted, f"no {abi}.txt in {lists.name}")
        return
    for symbol in asked:
        if symbol.name not in known and not symbol.weak:
            yield Violation("symbol", path, f"a symbol that torch {abi.release} exports", str(symbol))


def declared(header: str) -> dict[str, Release | None]:
    """Each C function of torch_c.h with the torch that introduced it; None for a function of torch's CUDA library."""
    return {
        name: None if cuda else Release(int(major), int(minor))
        for cuda, major, minor, name in _DECLARED.findall(header)
    }


@functools.cache
def exported_by(abi: TorchAbi, lists: Path) -> frozenset[str] | None:
    """The symbols of one torch, from a list ``<abi>.txt`` in the folder or from torch's libraries in ``<abi>/``."""
    recorded = lists / f"{abi}.txt"
    if recorded.is_file():
        lines = recorded.read_text(encoding="utf-8").splitlines()
        return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    installed = lists / str(abi)
    libraries = [path for pattern in LIBRARIES for path in sorted(installed.rglob(pattern))]
    if not libraries:
        return None
    return frozenset(name for path in libraries for name in binaries.symbols_of(path))
