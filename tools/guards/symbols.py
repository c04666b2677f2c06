"""The guard of undefined symbols: a library needs the C and C++ runtime alone, an adapter what its torch exports.

An adapter is compared with the symbols of its torch, either of an installed torch or from a recorded list. What the
table of functions holds is checked when it is filled, and against torch's headers by test_torch_c.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from precast.core.manifest import HostKind
from precast.core.reasons import Rejection
from precast.core.torch_abi import Exact, TorchAbi
from tools.guards.subject import Audited
from tools.shared import binaries

# Weak references from the C runtime's start files, which every library has and which need no definition.
_RUNTIME = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
_VERSIONED = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
# The libraries of an installed torch that an adapter may link, including torch's OpenMP runtime.
LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch.so", "libgomp*.so*")


def check_symbols(a: Audited) -> Iterator[Rejection]:
    """Check each library and each adapter."""
    for file in a.info.host:
        facts = a.libraries.get(file.path)
        if facts is None:
            continue  # the manifest guard reports it
        asked = asked_of_torch(facts)
        if file.kind is HostKind.ADAPTER and isinstance(file.abi, Exact):
            yield from _adapter(file.path, file.abi, asked, a.asked.torch_lists)
        else:
            for symbol in asked:
                yield Rejection("symbol", "symbols of the C and C++ runtime alone", str(symbol), file.path)


def asked_of_torch(facts: binaries.LibraryFacts) -> list[binaries.Undefined]:
    """The undefined symbols that the system does not define."""
    return [symbol for symbol in facts.undefined if not _of_the_system(symbol)]


def _of_the_system(symbol: binaries.Undefined) -> bool:
    """Whether the C or C++ runtime defines the symbol; the glibc guard checks its version."""
    if symbol.version is not None:
        return _VERSIONED.fullmatch(symbol.version) is not None
    return symbol.weak and symbol.name in _RUNTIME


def _adapter(path: str, abi: Exact, asked: Iterable[binaries.Undefined], lists: Path) -> Iterator[Rejection]:
    known = exported_by(abi, lists)
    if known is None:
        wanted = f"a list of what torch {abi.release} exports (python -m tools prove-classic)"
        yield Rejection("symbol", wanted, f"no {abi}.txt in {lists.name}", path)
        return
    for symbol in asked:
        if symbol.name not in known and not symbol.weak:
            yield Rejection("symbol", f"a symbol that torch {abi.release} exports", str(symbol), path)


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
