"""Read facts from the bytes of an ELF file: a cubin's target, a shared library's needs. Every read is range-checked.

For damaged bytes the result is ElfError or a value that is really in them, never another exception: the loader calls
this before anything is mapped, and the build before anything is published. Layout: System V ABI; cubin headers as the
CUDA 12 and 13 toolkits write them. The two put the SM number in different bytes of ``e_flags``; 12.8 and 12.9 write
sm_100 and newer as 13 does.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from precast.core.capability import ComputeCapability, GpuTarget, Suffix, TargetKind
from precast.core.value import value

Data = bytes | mmap.mmap
EM_CUDA = 190
MACHINES = {62: "x86_64", 183: "aarch64"}

_SHT_SYMTAB, _SHT_NOBITS, _SHT_DYNAMIC, _SHT_DYNSYM = 2, 8, 6, 11
_SHT_VERDEF, _SHT_VERNEED, _SHT_VERSYM, _SHT_CUDA_INFO = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF, 0x70000000
_SIZED = 4  # of .nv.info: an entry that states its size
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # what such an entry says of a function
_DT_NEEDED, _DT_SONAME, DT_RELR = 1, 14, 36
DYNAMIC, DT_STRTAB, DT_SYMTAB, DT_VERNEED = 0, 5, 6, 0x6FFFFFFE  # of a layout; the first is the dynamic section
_STT_GNU_IFUNC, _STB_GLOBAL = 10, 1
_WEAK_VERSION = 2  # the dynamic loader only warns where such a version is missing
# The version of libc.so.6 that a library with DT_RELR needs, and the glibc that brought both.
OF_RELR, _RELR_SINCE = "GLIBC_ABI_DT_RELR", (2, 36)
_OVERLAP = 16  # names may share bytes; their total size is at most this many times the size of the file
# The bit of `sm_XXa` in e_flags. NVRTC 12.8 and 12.9 set the second one; 13.0 and 13.2 leave it unset.
_ACCELERATED_12, _ACCELERATED_13 = 0x800, 0x8


class ElfError(ValueError):
    """The bytes are not the expected ELF file; the message names the wrong field."""


@value(frozen=True)
class CubinHeader:
    """The target that a cubin states. ``layout`` is the CUDA major that writes this layout for every GPU."""

    target: GpuTarget
    layout: int


@value(frozen=True)
class ElfInfo:
    """The needs of a shared library; ``glibc`` and ``glibcxx`` are the newest symbol versions it needs, () for none.

    ``versions`` has all that it needs, as (file, version), with "" for one that may be missing; ``offered`` those that
    it defines. ``anywhere`` has the undefined names that no version ties to a file, without those that may be missing.
    """

    machine: str
    soname: str | None
    needed: tuple[str, ...]
    glibc: tuple[int, ...]
    glibcxx: tuple[int, ...]
    undefined: frozenset[str]
    exported: frozenset[str]
    versions: tuple[tuple[str, str], ...] = ()
    offered: frozenset[str] = frozenset()
    anywhere: frozenset[str] = frozenset()


@value(frozen=True)
class Symbol:
    """A dynamic symbol that the library defines, with its address. ``indirect``: the library picks the code at load."""

    name: str
    address: int
    indirect: bool


@value(frozen=True)
class Segment:
    """One entry of the program table, with the names of elf(5)."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    align: int


@value(frozen=True)
class Layout:
    """How a library is mapped: the header of the file, its program table, and the dynamic entries as (tag, value).

    ``places`` has the offset of each table that the dynamic loader reads, by its tag, as the section table says it.
    """

    header: bytes
    segments: tuple[Segment, ...]
    dynamic: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, int | None], ...]


@value(frozen=True)
class _Section:
    name: int
    kind: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int
    info: int


class _Elf:
    """A little-endian 64-bit ELF whose section and program tables all lie inside the file."""

    def __init__(self, data: Data) -> None:
        self.data = data
        if len(data) < 64 or data[:4] != b"\x7fELF":
            raise ElfError(f"not an ELF file ({len(data)} bytes, first four {data[:4]!r})")
        if data[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        self.os_abi, self.abi_version = data[7], data[8]
        self.kind, self.machine = self.unpack("<HH", 16)
        self.flags: int = self.unpack("<I", 48)[0]
        self._left = _OVERLAP * len(data)
        self.segments = tuple(self._segments())

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        """Read integers at an offset. ElfError if the file ends before them."""
        if offset < 0 or offset + struct.calcsize(layout) > len(self.data):
            raise ElfError(f"the file ends at byte {len(self.data)}, and a field lies at {offset}")
        return struct.unpack_from(layout, self.data, offset)

    def _segments(self) -> Iterator[Segment]:
        start = self.unpack("<Q", 32)[0]
        size, count = self.unpack("<HH", 54)
        for index in range(count):
            kind, flags, offset, address, _, length, memory, align = self.unpack("<IIQQQQQQ", start + index * size)
            if offset + length > len(self.data):
                raise ElfError(f"segment {index} ends at byte {offset + length}, and the file at {len(self.data)}")
            yield Segment(kind, flags, offset, address, length, memory, align)

    @cached_property
    def sections(self) -> tuple[_Section, ...]:
        """The section table. A section outside the file is an error, whatever it holds."""
        start = self.unpack("<Q", 40)[0]
        size, count = self.unpack("<HH", 58)
        if not count:
            raise ElfError("there is no section table")
        if size != 64:
            raise ElfError(f"a section header has {size} bytes, not 64")
        found = []
        for index in range(count):
            name, kind, _, address, offset, length, link, info, _, entry = self.unpack(
                "<IIQQQQIIQQ", start + index * size
            )
            if kind not in {0, _SHT_NOBITS} and offset + length > len(self.data):
                raise ElfError(f"section {index} ends at byte {offset + length}, and the file at {len(self.data)}")
            found.append(_Section(name, kind, address, offset, length, link, entry, info))
        return tuple(found)

    def string(self, table: _Section, offset: int) -> str:
        """Read a NUL-terminated name from a string table."""
        end = table.offset + table.size
        start = table.offset + offset
        if not table.offset <= start < end:
            raise ElfError(f"a name begins at byte {offset} of a string table of {table.size} bytes")
        stop = self.data.find(b"\0", start, end)
        if stop < 0:
            raise ElfError("a name does not end inside its string table")
        self.spend(stop - start)
        return self.data[start:stop].decode("utf-8", "backslashreplace")

    def spend(self, size: int) -> None:
        """Count the bytes of a name or an entry. They may overlap, and all of them together have a limit."""
        self._left -= size
        if self._left < 0:
            raise ElfError("names or entries overlap without end")

    def strings_of(self, section: _Section) -> _Section:
        """The string table that a section refers to."""
        if section.link >= len(self.sections):
            raise ElfError(f"a section refers to section {section.link}, and there are {len(self.sections)}")
        return self.sections[section.link]

    def of_kind(self, kind: int) -> Iterator[_Section]:
        """The sections of one type."""
        return (section for section in self.sections if section.kind == kind)


def read_cubin(data: bytes) -> CubinHeader:
    """Read the target of a cubin in either layout."""
    elf = _Elf(data)
    if elf.machine != EM_CUDA:
        raise ElfError(f"the ELF machine is {elf.machine}, and that of a cubin is {EM_CUDA}")
    suffix: Suffix = ""
    if (elf.os_abi, elf.abi_version) == (51, 7):
        suffix = "a" if elf.flags & _ACCELERATED_12 else ""
        layout, number = 12, elf.flags & 0xFF
    elif (elf.os_abi, elf.abi_version) == (65, 8):
        suffix = "a" if elf.flags & _ACCELERATED_13 else ""
        layout, number = 13, (elf.flags >> 8) & 0xFF
    else:
        raise ElfError(f"unknown cubin layout: OS ABI {elf.os_abi}, ABI version {elf.abi_version}")
    if number < 50 or not elf.sections:
        raise ElfError(f"the header names sm_{number}, which is no GPU")
    try:
        return CubinHeader(GpuTarget(TargetKind.SASS, ComputeCapability.from_number(number), suffix), layout)
    except ValueError as error:
        raise ElfError(f"the header names no target: {error}") from error


def read_frames(data: bytes, what: int = FRAME_SIZE) -> dict[str, int]:
    """The stack bytes of each function of a cubin, or its registers. A stack has spilled registers or local arrays."""
    elf = _Elf(data)
    found = {}
    symbols = next(elf.of_kind(_SHT_SYMTAB), None)  # CUDA 12.1 does not name it as the link of .nv.info
    if symbols is None:
        raise ElfError("there is no symbol table")
    names = elf.strings_of(symbols)
    for section in elf.of_kind(_SHT_CUDA_INFO):
        at, end = section.offset, section.offset + section.size
        while at < end:
            form, attribute, size = elf.unpack("<BBH", at)
            at += 4
            if (form, attribute) == (_SIZED, what):
                symbol, number = elf.unpack("<II", at)
                name = elf.unpack("<I", symbols.offset + symbol * 24)[0]
                found[elf.string(names, name)] = number
            at += size if form == _SIZED else 0
    return found


def read_shared_object(data: Data) -> ElfInfo:
    """Read the needs and exports of a shared library from its dynamic section, symbols and version needs."""
    elf = _Elf(data)
    if elf.kind != 3:
        raise ElfError(f"the ELF type is {elf.kind}, and that of a shared library is 3")
    if elf.machine not in MACHINES:
        raise ElfError(f"the ELF machine is {elf.machine}; known are {', '.join(MACHINES.values())}")
    needed, soname, relative = _dynamic(elf)
    versions = tuple(dict.fromkeys(_needed_versions(elf)))
    names = [version for _, version in versions]
    relative = _RELR_SINCE if OF_RELR in names else relative
    undefined, exported, anywhere = _symbols(elf)
    return ElfInfo(
        machine=MACHINES[elf.machine],
        soname=soname,
        needed=needed,
        glibc=max(_ceiling("GLIBC_", names), relative),
        glibcxx=_ceiling("GLIBCXX_", names),
        undefined=undefined,
        exported=exported,
        versions=versions,
        offered=frozenset(_offered_versions(elf)),
        anywhere=anywhere,
    )


def read_layout(data: bytes) -> Layout:
    """How the dynamic loader maps a shared library."""
    elf = _Elf(data)
    tables = {section.kind: section.offset for section in reversed(elf.sections)}
    strings = [elf.strings_of(table).offset for table in elf.of_kind(_SHT_DYNAMIC)]
    places = {DYNAMIC: tables.get(_SHT_DYNAMIC), DT_STRTAB: strings[0] if strings else None}
    places |= {DT_SYMTAB: tables.get(_SHT_DYNSYM), DT_VERNEED: tables.get(_SHT_VERNEED)}
    return Layout(bytes(data[:64]), elf.segments, tuple(_entries(elf)), tuple(places.items()))


def read_sections(data: bytes, names: Collection[str]) -> dict[str, tuple[int, memoryview]]:
    """The address and the content of each named section of an ELF file that has it, in the order of the file."""
    elf = _Elf(data)
    at = elf.unpack("<H", 62)[0]
    if at >= len(elf.sections):
        raise ElfError(f"the names of sections are in section {at}, and there are {len(elf.sections)}")
    found = {}
    for section in elf.sections[1:]:
        name = elf.string(elf.sections[at], section.name)
        if name in names and section.kind != _SHT_NOBITS:
            found[name] = (section.address, memoryview(data)[section.offset : section.offset + section.size])
    return found


def read_symbols(data: bytes) -> Iterator[Symbol]:
    """The functions and objects that a shared library defines for others."""
    for _, name, info, section, address in _dynamic_symbols(_Elf(data)):
        if section and info >> 4:
            yield Symbol(name, address, info & 15 == _STT_GNU_IFUNC)


def _dynamic(elf: _Elf) -> tuple[tuple[str, ...], str | None, tuple[int, ...]]:
    """The libraries that it needs, its own name, and the glibc that its kind of relocations needs."""
    needed, soname, glibc = [], None, tuple[int, ...]()
    entries = tuple(_entries(elf))
    strings = elf.strings_of(next(elf.of_kind(_SHT_DYNAMIC)))
    for tag, content in entries:
        if tag == _DT_NEEDED:
            needed.append(elf.string(strings, content))
        elif tag == _DT_SONAME:
            soname = elf.string(strings, content)
        elif tag == DT_RELR:
            glibc = _RELR_SINCE
    return tuple(needed), soname, glibc


def _entries(elf: _Elf) -> Iterator[tuple[int, int]]:
    """Each tag of the dynamic section with its value."""
    tables = tuple(elf.of_kind(_SHT_DYNAMIC))
    if len(tables) != 1:
        raise ElfError(f"there are {len(tables)} dynamic sections, and a shared library has one")
    for offset in range(tables[0].offset, tables[0].offset + tables[0].size, 16):
        tag, content = elf.unpack("<QQ", offset)
        if tag == 0:
            break
        yield tag, content


def _symbols(elf: _Elf) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    undefined, exported, anywhere = set(), set(), set()
    versions = next(elf.of_kind(_SHT_VERSYM), None)
    for index, name, info, section, _ in _dynamic_symbols(elf):
        if section == 0:
            undefined.add(name)
            tied = versions is not None and elf.unpack("<H", versions.offset + 2 * index)[0] & 0x7FFF > 1
            if not tied and info >> 4 == _STB_GLOBAL:
                anywhere.add(name)
        elif info >> 4 != 0:  # a local symbol is not exported
            exported.add(name)
    return frozenset(undefined), frozenset(exported), frozenset(anywhere)


def _dynamic_symbols(elf: _Elf) -> Iterator[tuple[int, str, int, int, int]]:
    """Index, name, type and binding, section and address of each dynamic symbol."""
    for table in elf.of_kind(_SHT_DYNSYM):
        strings = elf.strings_of(table)
        for offset in range(table.offset, table.offset + table.size, 24):
            name, info, _, section, address = elf.unpack("<IBBHQ", offset)
            if not name:
                continue
            yield (offset - table.offset) // 24, elf.string(strings, name), info, section, address


def _needed_versions(elf: _Elf) -> Iterator[tuple[str, str]]:
    """Each (file, version) in .gnu.version_r, a list of files with a list of versions each; "" for a weak need."""
    for table in elf.of_kind(_SHT_VERNEED):
        strings = elf.strings_of(table)
        for at, (_, count, file, aux, _) in _listed(elf, table, table.offset, table.info, "<HHIII"):
            for _, (_, flags, _, name, _) in _listed(elf, table, at + aux, count, "<IHHII"):
                yield elf.string(strings, file), "" if flags & _WEAK_VERSION else elf.string(strings, name)


def _offered_versions(elf: _Elf) -> Iterator[str]:
    """Each version in .gnu.version_d that the library defines; the first name of an entry is its own."""
    for table in elf.of_kind(_SHT_VERDEF):
        strings = elf.strings_of(table)
        for at, (*_, aux, _) in _listed(elf, table, table.offset, table.info, "<HHHHIII"):
            for _, (name, _) in _listed(elf, table, at + aux, 1, "<II"):
                yield elf.string(strings, name)


def _listed(elf: _Elf, table: _Section, at: int, count: int, layout: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The offset and the fields of each entry of a list, whose last field is the distance to the next entry."""
    for _ in range(count):
        if at + struct.calcsize(layout) > table.offset + table.size:
            raise ElfError("the list of symbol versions is longer than its section")
        elf.spend(struct.calcsize(layout))
        fields = elf.unpack(layout, at)
        yield at, fields
        if not fields[-1]:
            break
        at += fields[-1]


def _ceiling(prefix: str, versions: Iterable[str]) -> tuple[int, ...]:
    """The newest version with a prefix. Names without a number, such as GLIBC_PRIVATE, are not among them."""
    numbers = (numbered(version, prefix) for version in versions)
    return max((number for number in numbers if number is not None), default=())


def numbered(version: str, prefix: str) -> tuple[int, ...] | None:
    """``"GLIBC_2.28"`` -> (2, 28) for the prefix ``"GLIBC_"``; None for another prefix, or without a number."""
    parts = version.removeprefix(prefix).split(".")
    fits = version.startswith(prefix) and all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts)
    return tuple(map(int, parts)) if fits else None
