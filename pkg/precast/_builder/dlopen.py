"""Whether glibc's dynamic loader takes a library: the checks that it makes before it looks for a single symbol.

The checks are those of ``elf/dl-load.c`` and ``elf/dl-version.c``. What the loader reads through the program table
must be what was read here through the section table; otherwise nothing that was read says anything about it.
"""

from __future__ import annotations

from collections.abc import Iterator

from precast._abi.value import value
from precast._abi.version import Release
from precast._builder import elf

# glibc 2.41 refuses to open a library that wants an executable stack.
STRICT_STACK = Release(2, 41)
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_EXECUTABLE, _PAGE = 1, 4096
_SYSTEM_V, _GNU, _NEWEST_GNU = 0, 3, 3
_SEGMENT_BYTES = 56
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
    ("libc.so.6", "GLIBC_ABI_DT_RELR"),
}
_GLIBC = {f"lib{name}.so.{number}" for name, number in (
    ("c", 6), ("m", 6), ("dl", 2), ("rt", 1), ("pthread", 0), ("util", 1), ("resolv", 2), ("nsl", 1), ("crypt", 1),
    ("anl", 1), ("mvec", 1), ("BrokenLocale", 1))} | {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip


@value(frozen=True)
class Opening:
    """What the loader says before it looks for symbols: why it refuses on every host, or why that cannot be known."""

    refused: str = ""
    unsure: str = ""
    executable_stack: bool = False


def read(data: bytes) -> Opening:
    """Judge the header, the program table and the dynamic entries of a shared library. ElfError if they are damaged."""
    layout = elf.read_layout(data)
    stacks = [segment for segment in layout.segments if segment.kind == _STACK]
    # A file without such a segment is taken for one from before it was invented.
    executable = bool(stacks[-1].flags & _EXECUTABLE) if stacks else bool(layout.segments)
    return Opening(next(_refused(layout), ""), next(_unsure(layout), ""), executable)


def known(file: str, version: str) -> bool:
    """Whether the system's library of that name is known to offer a version. The user names that of glibc."""
    if (file, version) in _NAMED or version == file:  # CUDA's libraries have one version, of their own name
        return True
    if file in _GLIBC:
        return elf.numbered(version, "GLIBC_") is not None
    found = ((elf.numbered(version, prefix), most) for prefix, most in _NEWEST.get(file, {}).items())
    return any(number is not None and number <= most for number, most in found)


def _refused(layout: elf.Layout) -> Iterator[str]:
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
        if segment.align % _PAGE or (segment.address - segment.offset) & (segment.align - 1):
            yield f"the segment at byte {segment.offset} is not aligned to pages"
    flags = dict(layout.dynamic).get(_DT_FLAGS_1, 0)
    if flags & _NO_OPEN:
        yield "it says that it must not be opened"
    if flags & _PROGRAM:
        yield "it is a program, not a library"


def _unsure(layout: elf.Layout) -> Iterator[str]:
    """Where the program table leads the loader to other bytes than the section table led us."""
    mapped = [segment.offset for segment in layout.segments if segment.kind == _DYNAMIC]
    dynamic = dict(layout.dynamic)
    for tag, place in layout.places:
        if tag == elf.DYNAMIC:
            at = mapped[-1] if mapped else place
        elif tag in dynamic:
            at = _offset(layout, dynamic[tag])
        else:
            continue
        if at != place:
            yield "its section table and its program table do not agree"
    for segment in layout.segments:
        if segment.kind == _LOAD and segment.memory_size < segment.file_size:
            yield f"the segment at byte {segment.offset} is smaller in memory than in the file"


def _offset(layout: elf.Layout, address: int) -> int | None:
    """The offset in the file of what is mapped at an address."""
    for segment in layout.segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.file_size:
            return address - segment.address + segment.offset
    return None
