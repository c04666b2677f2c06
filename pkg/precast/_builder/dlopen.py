"""Whether glibc's dynamic loader takes a library: the checks that it makes before it looks for a single symbol.

The checks are those of ``elf/dl-load.c`` and ``elf/dl-version.c``. What the loader reads through the program table
must be what was read here through the section table; otherwise nothing that was read says anything about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from precast._builder import elf
from precast.core.value import value
from precast.core.version import Release

# glibc 2.41 refuses to open a library that wants an executable stack.
STRICT_STACK = Release(2, 41)
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_EXECUTABLE, _WRITABLE, _PAGE = 1, 2, 4096
_WEAK = "libc.so.6", ""
_SYSTEM_V, _GNU, _NEWEST_GNU = 0, 3, 3
_SEGMENT_BYTES = 56
_MOST_MEMORY = 64 << 30  # a machine may refuse more
_DT_FLAGS_1 = 0x6FFFFFFB
_NO_OPEN, _PROGRAM = 0x40, 0x8000000  # DF_1_NOOPEN, DF_1_PIE

# The newest versions that the runtimes of GCC 15 offer (its map files) and zlib 1.3; newer ones are unknown. These
# libraries keep all older versions. The user names glibc's.
_NEWEST: dict[str, dict[str, tuple[int, ...]]] = {
    "libstdc++.so.6": {"GLIBCXX_": (3, 4, 34), "CXXABI_": (1, 3, 16)},
    "libgcc_s.so.1": {"GCC_": (14, 0, 0)},
    "libgomp.so.1": {"GOMP_": (5, 1, 2), "OMP_": (5, 2), "GOACC_": (2, 0, 2), "OACC_": (2, 6)},
    "libatomic.so.1": {"LIBATOMIC_": (1, 2)},
    "libz.so.1": {"ZLIB_": (1, 2, 12)},
}
_NAMED = {
    ("libstdc++.so.6", "CXXABI_TM_1"),
    ("libstdc++.so.6", "CXXABI_FLOAT128"),
    ("libgomp.so.1", "GOMP_PLUGIN_1.0"),
    ("libc.so.6", elf.OF_RELR),
}
_GLIBC = {f"lib{name}.so.{number}" for name, number in (
    ("c", 6), ("m", 6), ("dl", 2), ("rt", 1), ("pthread", 0), ("util", 1), ("resolv", 2), ("nsl", 1), ("crypt", 1),
    ("anl", 1), ("mvec", 1), ("BrokenLocale", 1))} | {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip
# Names that every Python process has; libraries that were linked without libdl or libpthread name no version of them.
_OF_PYTHON = re.compile(r"dl(?:open|close|sym|vsym|error|addr1?|info|mopen)|(?:pthread|sem)_\w+")


@value(frozen=True)
class Opening:
    """What the loader says before it looks for symbols: why it refuses on every host, or why that cannot be known."""

    refused: str = ""
    unsure: str = ""
    executable_stack: bool = False


def read(data: bytes, versions: tuple[tuple[str, str], ...] = ()) -> Opening:
    """Judge the header, the program table and the dynamic entries of a shared library. ElfError if they are damaged.

    ``versions`` are the (file, version) that it needs.
    """
    layout = elf.read_layout(data)
    stacks = [segment for segment in layout.segments if segment.kind == _STACK]
    # A file without such a segment is taken for one from before it was invented.
    executable = bool(stacks[-1].flags & _EXECUTABLE) if stacks else bool(layout.segments)
    return Opening(next(_refused(layout, versions), ""), next(_unsure(layout, versions), ""), executable)


def known(file: str, version: str) -> bool:
    """Whether the system's library of that name is known to offer a version. The user names that of glibc."""
    if (file, version) in _NAMED or version in ("", file):  # CUDA's libraries have one version, of their own name
        return True
    if file in _GLIBC:
        return elf.numbered(version, "GLIBC_") is not None
    found = ((elf.numbered(version, prefix), most) for prefix, most in _NEWEST.get(file, {}).items())
    return any(number is not None and number <= most for number, most in found)


def offers(file: str, name: str) -> bool:
    """Whether that library may define a name without a version. All but zlib have a version for each name."""
    return file not in {*_GLIBC, *_NEWEST} - {"libz.so.1"} or _OF_PYTHON.fullmatch(name) is not None


def _refused(layout: elf.Layout, versions: tuple[tuple[str, str], ...]) -> Iterator[str]:
    header = layout.header
    if header[6] != 1 or header[20:24] != b"\1\0\0\0":
        yield "the version of the file's format is not 1"
    if header[7] not in (_SYSTEM_V, _GNU) or header[8] > (_NEWEST_GNU if header[7] == _GNU else 0):
        yield f"it is for the OS ABI {header[7]}, version {header[8]}"
    if any(header[9:16]):
        yield "bytes of its header that must be zero are not"
    if int.from_bytes(header[54:56], "little") != _SEGMENT_BYTES:
        yield f"an entry of its program table has {int.from_bytes(header[54:56], 'little')} bytes, not {_SEGMENT_BYTES}"
    loads = [segment for segment in layout.segments if segment.kind == _LOAD]
    if not loads:
        yield "it has no segment that could be loaded"
    if not any(segment.kind == _DYNAMIC for segment in layout.segments):
        yield "it has no dynamic segment"
    for segment in loads:
        if (segment.address - segment.offset) % _PAGE:
            yield f"the segment at byte {segment.offset} is not aligned to pages"
    dynamic = dict(layout.dynamic)
    if elf.DT_RELR in dynamic and versions and {("libc.so.6", elf.OF_RELR), _WEAK}.isdisjoint(versions):
        yield f"it has relative relocations (DT_RELR), and does not need {elf.OF_RELR} for them"
    flags = dynamic.get(_DT_FLAGS_1, 0)
    if flags & _NO_OPEN:
        yield "it says that it must not be opened"
    if flags & _PROGRAM:
        yield "it is a program, not a library"


def _unsure(layout: elf.Layout, versions: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Where the program table leads the loader to other bytes than the section table led us."""
    mapped = [segment for segment in layout.segments if segment.kind == _DYNAMIC]
    dynamic = dict(layout.dynamic)
    for tag, place in layout.places:
        if tag == elf.DYNAMIC:
            at = _offset(layout, mapped[-1].address) if mapped else place
        elif tag in dynamic:
            at = _offset(layout, dynamic[tag])
        else:
            continue
        if at != place:
            yield "its section table and its program table do not agree"
    for segment in layout.segments:
        where, size = f"the segment at byte {segment.offset}", segment.memory_size
        if segment.kind == _LOAD and segment.align % _PAGE:  # older glibcs refuse it
            yield f"{where} has an alignment of {segment.align} bytes"
        if segment.kind == _LOAD and not segment.file_size <= size <= _MOST_MEMORY:
            yield f"{where} takes {size} bytes of memory for {segment.file_size} of the file"
        if segment.kind == _DYNAMIC and size != segment.file_size:
            yield f"{where} has {segment.file_size} bytes, and {size} in memory"
        if segment.kind == _LOAD and not segment.flags & _WRITABLE and _holds(segment, mapped):
            yield f"{where} has the dynamic entries, which the loader writes to, and is read-only"
    if elf.DT_RELR in dynamic and versions and ("libc.so.6", elf.OF_RELR) not in versions:
        yield f"nothing says whether its need of {elf.OF_RELR} may stay open"


def _holds(load: elf.Segment, dynamic: list[elf.Segment]) -> bool:
    """Whether a segment has the dynamic entries, and they say that they are written to."""
    inside = (one for one in dynamic if one.flags & _WRITABLE)
    return any(load.address <= one.address < load.address + load.memory_size for one in inside)


def _offset(layout: elf.Layout, address: int) -> int | None:
    """The offset in the file of what is mapped at an address."""
    for segment in layout.segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.file_size:
            return address - segment.address + segment.offset
    return None
