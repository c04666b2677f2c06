"""The guard of undefined symbols: whatever a host library takes from torch is there in every torch that it claims.

A stable library may ask for the C functions that the pinned headers of torch declare for its floor, and for no other
symbol of torch. A classic library is held against the symbols that its torch exports: of an installed one, or recorded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from precast._abi.torch_abi import Exact, Stable, TorchAbi
from precast._abi.version import Release
from precast._abi.violation import Violation
from tools import binaries
from tools.guards.subject import Audited

INCLUDE = "precast/csrc/torch_stable/include/torch/csrc/"
_SHIMS = re.compile(r"(inductor/aoti_torch/(c|generated)|stable/c)/\w*shim\w*\.h")
_DECLARED = re.compile(r"AOTI_TORCH_EXPORT[^;{]*?\b((?:aoti_)?torch_\w+)\s*\(")
_SINCE = re.compile(r"#if\s+TORCH_FEATURE_VERSION\s*>=\s*TORCH_VERSION_(\d+)_(\d+)_\d+")
# Weak references that the C runtime's start files make in every library; nobody has to define them.
_RUNTIME = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
_VERSIONED = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
# What of an installed torch a classic library may resolve against; its OpenMP runtime lies beside them.
LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch.so", "libgomp*.so*")
_ANY = Release(0, 0)


def check_symbols(a: Audited) -> Iterator[Violation]:
    """Each library by its torch ABI."""
    shims = declared_shims(a.wheel.below(INCLUDE))
    for file in a.info.host:
        facts = a.libraries.get(file.path)
        if facts is None:
            continue  # the guard of the manifest has said so
        asked = asked_of_torch(facts)
        if isinstance(file.abi, Stable):
            yield from _stable(file.path, file.abi, asked, shims)
        else:
            yield from _classic(file.path, file.abi, asked, a.asked.torch_lists)


def asked_of_torch(facts: binaries.LibraryFacts) -> list[binaries.Undefined]:
    """What a library takes from elsewhere that the system does not define."""
    return [symbol for symbol in facts.undefined if not _of_the_system(symbol)]


def _of_the_system(symbol: binaries.Undefined) -> bool:
    """What the C and C++ runtimes define; the guard of glibc judges their versions."""
    if symbol.version is not None:
        return _VERSIONED.fullmatch(symbol.version) is not None
    return symbol.weak and symbol.name in _RUNTIME


def _stable(
    path: str, abi: Stable, asked: Iterable[binaries.Undefined], shims: Mapping[str, Release | None]
) -> Iterator[Violation]:
    """A weak reference may be to a newer function, as the code then asks whether it is there."""
    for symbol in asked:
        if symbol.name not in shims:
            yield Violation("symbol", path, "functions of torch's stable ABI alone", str(symbol))
            continue
        since = shims[symbol.name]
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


def declared_shims(headers: Mapping[str, bytes]) -> dict[str, Release | None]:
    """Each C function of the stable ABI, and the torch it came with; None for one of torch's CUDA or MPS library.

    Functions without a version are older than the oldest floor that the stable ABI can be built for.
    """
    found: dict[str, Release | None] = {}
    for name, data in headers.items():
        if _SHIMS.fullmatch(name):
            found |= _declared(data.decode("utf-8"))
    return found


def _declared(text: str) -> dict[str, Release | None]:
    """Walk the conditions of one header; declarations may go over several lines, conditions do not."""
    found: dict[str, Release | None] = {}
    open_conditions: list[Release | None] = []
    code: list[str] = []

    def flush() -> None:
        since = None if None in open_conditions else max((r for r in open_conditions if r), default=_ANY)
        found.update(dict.fromkeys(_DECLARED.findall("\n".join(code)), since))
        code.clear()

    for line in re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).splitlines():
        if not line.startswith("#"):
            code.append(line)
            continue
        flush()
        if line.startswith("#if"):
            since = _SINCE.match(line)
            device_only = re.match(r"#ifdef\s+USE_(CUDA|MPS)\b", line)
            open_conditions.append(Release(int(since[1]), int(since[2])) if since else None if device_only else _ANY)
        elif line.startswith("#endif"):
            open_conditions.pop()
    flush()
    return found


@functools.cache
def exported_by(abi: TorchAbi, lists: Path) -> frozenset[str] | None:
    """The symbols of one torch: a list ``<abi>.txt`` in that folder, or ``<abi>/`` with torch's own libraries in it."""
    recorded = lists / f"{abi}.txt"
    if recorded.is_file():
        lines = recorded.read_text(encoding="utf-8").splitlines()
        return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    installed = lists / str(abi)
    libraries = [path for pattern in LIBRARIES for path in sorted(installed.rglob(pattern))]
    if not libraries:
        return None
    return frozenset(name for path in libraries for name in binaries.symbols_of(path))
