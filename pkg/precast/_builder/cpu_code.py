"""The processor features that a library's code uses, and whether it asks the processor first.

A library that chooses code at run time executes ``cpuid``, or calls a function that does, or has indirect functions. In
such a library only the code that runs unconditionally when it is opened counts as required. In any other library every
function does.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator

from precast._builder import elf, x86
from precast.core.value import value

_SECTIONS = (".text", ".init", ".eh_frame", ".init_array", ".rela.dyn")
# Functions and data of GCC's runtime, glibc, torch and AWS's libraries that tell what the processor has.
_ASKS = re.compile(
    r"__cpu_model|__cpu_features2|__cpu_indicator_init|__get_cpuid\w*|getauxval|__getauxval|cpuinfo_\w+"
    r"|_ZN2at18get_cpu_capabilityEv|_ZN2at3cpu\w+|__x86_get_cpu\w+|\w*cpu_(?:has|supports)\w*|__aarch64_\w+"
)
_CANDIDATES = re.compile(rb"\xc5[\x00-\xff][\x10-\xff]|\xc4[\x00-\xff]{2}|\x62[\x00-\xff][\x04-\x07\x0c-\x0f\x14-\xff]")
_CPUID = re.compile(rb"\x0f\xa2")
_RELATIVE = 8, 1027  # R_X86_64_RELATIVE and R_AARCH64_RELATIVE of the ELF supplements
_MOST_BYTES = 3 << 20  # decoded at most; the functions with the most candidates come first
_ENOUGH = 3  # instructions of SVE: data between functions may look like one


@value(frozen=True)
class CpuUse:
    """The features of the code that always runs, and of the code that is chosen after asking the processor."""

    required: tuple[str, ...]
    chosen: tuple[str, ...]


def read(data: bytes, machine: str, undefined: frozenset[str]) -> CpuUse:
    """Read a shared library. ElfError if its bytes contradict themselves."""
    sections = elf.read_sections(data, _SECTIONS)
    if ".text" not in sections:
        return CpuUse((), ())
    start, text = sections[".text"]
    functions = _functions(sections, start, len(text))
    if machine != "x86_64":
        used = {"sve"} if _has_sve(text) else set[str]()
        asks = any(map(_ASKS.fullmatch, undefined))
        return CpuUse((), tuple(used)) if asks else CpuUse(tuple(used), ())
    code = bytes(text)
    used = _used(code, functions)
    symbols = list(elf.read_symbols(data))
    asks = any(symbol.indirect for symbol in symbols) or any(map(_ASKS.fullmatch, undefined)) or _runs_cpuid(code)
    if not asks or not used:
        return CpuUse(tuple(sorted(used)), ())
    first = {symbol.address - start for symbol in symbols if symbol.name.startswith("PyInit_")}
    first |= {address - start for address in _constructors(sections)}
    at_load = _used(code, [function for function in functions if function[0] in first])
    return CpuUse(tuple(sorted(at_load)), tuple(sorted(used - at_load)))


def _runs_cpuid(code: bytes) -> bool:
    return _CPUID.search(code) is not None


def _used(code: bytes, functions: list[tuple[int, int]]) -> set[str]:
    """Each feature that a function uses. A function that cannot be decoded to its end does not count."""
    starts = [start for start, _ in functions]
    density: Counter[int] = Counter()
    for match in _CANDIDATES.finditer(code):
        index = bisect_right(starts, match.start()) - 1
        if index >= 0 and match.start() < functions[index][1]:
            density[index] += 1
    found = set[str]()
    left = _MOST_BYTES
    order = sorted(density, key=lambda index: (-density[index] / (functions[index][1] - functions[index][0]), index))
    for index in order:
        start, end = functions[index]
        left -= end - start
        if left < 0:
            break
        try:
            found |= set(x86.features(code[start:end]))
        except x86.Undecodable:
            continue  # data in the code, or an instruction newer than the decoder
    return found


def _functions(sections: dict[str, tuple[int, memoryview]], start: int, size: int) -> list[tuple[int, int]]:
    """The range of each function within ``.text``, from the call frame information; all of it if there is none."""
    if ".eh_frame" not in sections:
        return [(0, size)]
    address, frames = sections[".eh_frame"]
    found = set[tuple[int, int]]()
    at = 0
    while at + 16 <= len(frames):
        length, owner = struct.unpack_from("<II", frames, at)
        if length == 0 or length == 0xFFFFFFFF:
            break
        # GCC and LLVM encode both as 4-byte numbers, the first relative to its own place (LSB Core, ".eh_frame").
        begin, extent = struct.unpack_from("<iI", frames, at + 8)
        low = address + at + 8 + begin - start
        if owner and 0 <= low < low + extent <= size:
            found.add((low, low + extent))
        at += 4 + length
    return sorted(found) or [(0, size)]


def _constructors(sections: dict[str, tuple[int, memoryview]]) -> Iterator[int]:
    """The addresses of the functions that run when the library is opened."""
    if ".init_array" not in sections or ".rela.dyn" not in sections:
        return
    address, array = sections[".init_array"]
    relocations = sections[".rela.dyn"][1]
    for place, info, addend in struct.iter_unpack("<QQq", relocations[: len(relocations) // 24 * 24]):
        if info in _RELATIVE and address <= place < address + len(array):
            yield addend


def _has_sve(text: memoryview) -> bool:
    """Whether enough instructions are in the encoding group of SVE (Arm ARM, "A64 instruction set encoding")."""
    words = text[: len(text) // 4 * 4].cast("I")
    found = 0
    for word in words:
        if word >> 25 & 15 == 2:
            found += 1
            if found >= _ENOUGH:
                return True
    return False
