"""Read facts from the bytes of an ELF file: a cubin's target, a shared library's needs. Every read is range-checked.

For damaged bytes the result is ElfError or a value that is really in them, never another exception: the loader calls
this before anything is mapped, and the build before anything is published. Layout: System V ABI; cubin headers as the
CUDA 12 and 13 toolkits write them. The two put the SM number in different bytes of ``e_flags``; 12.8 and 12.9 write
sm_100 and newer as 13 does.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from functools import cached_property

from precast._abi.capability import ComputeCapability, GpuTarget, Suffix, TargetKind
from precast._abi.value import value

EM_CUDA = 190
MACHINES = {62: "x86_64", 183: "aarch64"}

_SHT_SYMTAB, _SHT_NOBITS, _SHT_DYNAMIC, _SHT_DYNSYM = 2, 8, 6, 11
_SHT_VERNEED, _SHT_CUDA_INFO = 0x6FFFFFFE, 0x70000000
_SIZED = 4  # of .nv.info: an entry that states its size
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # what such an entry says of a function
_DT_NEEDED, _DT_SONAME = 1, 14
_STT_GNU_IFUNC = 10
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
    """The needs of a shared library; ``glibc`` and ``glibcxx`` are the newest symbol versions it needs, () for none."""

    machine: str
    soname: str | None
    needed: tuple[str, ...]
    glibc: tuple[int, ...]
    glibcxx: tuple[int, ...]
    undefined: frozenset[str]
    exported: frozenset[str]


@value(frozen=True)
class Symbol:
    """A dynamic symbol that the library defines, with its address. ``indirect``: the library picks the code at load."""

    name: str
    address: int
    indirect: bool


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

    def __init__(self, data: bytes) -> None:
        self.data = data
        if len(data) < 64 or data[:4] != b"\x7fELF":
            raise ElfError(f"not an ELF file ({len(data)} bytes, first four {data[:4]!r})")
        if data[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        self.os_abi, self.abi_version = data[7], data[8]
        self.kind, self.machine = self.unpack("<HH", 16)
        self.flags: int = self.unpack("<I", 48)[0]
        self._check_segments()

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        """Read integers at an offset. ElfError if the file ends before them."""
        if offset < 0 or offset + struct.calcsize(layout) > len(self.data):
            raise ElfError(f"the file ends at byte {len(self.data)}, and a field lies at {offset}")
        return struct.unpack_from(layout, self.data, offset)

    def _check_segments(self) -> None:
        start = self.unpack("<Q", 32)[0]
        size, count = self.unpack("<HH", 54)
        for index in range(count):
            offset, _, _, length = self.unpack("<QQQQ", start + index * size + 8)
            if offset + length > len(self.data):
                raise ElfError(f"segment {index} ends at byte {offset + length} of {len(self.data)}")

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
                raise ElfError(f"section {index} ends at byte {offset + length} of {len(self.data)}")
            found.append(_Section(name, kind, address, offset, length, link, entry, info))
        return tuple(found)

    def string(self, table: _Section, offset: int) -> str:
        """Read a NUL-terminated name from a string table."""
        end = table.offset + table.size
        start = table.offset + offset
        if not table.offset <= start < end:
            raise ElfError(f"a name lies at {offset} of a string table of {table.size} bytes")
        stop = self.data.find(b"\0", start, end)
        if stop < 0:
            raise ElfError("a name does not end inside its string table")
        return self.data[start:stop].decode("utf-8", "backslashreplace")

    def strings_of(self, section: _Section) -> _Section:
        """The string table that a section refers to."""
        if section.link >= len(self.sections):
            raise ElfError(f"a section refers to section {section.link} of {len(self.sections)}")
        return self.sections[section.link]

    def of_kind(self, kind: int) -> Iterator[_Section]:
        """The sections of one type."""
        return (section for section in self.sections if section.kind == kind)


def read_cubin(data: bytes) -> CubinHeader:
    """Read the target of a cubin in either layout."""
    elf = _Elf(data)
    if elf.machine != EM_CUDA:
        raise ElfError(f"the machine is {elf.machine}, and a cubin has {EM_CUDA}")
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


def read_shared_object(data: bytes) -> ElfInfo:
    """Read the needs and exports of a shared library from its dynamic section, symbols and version needs."""
    elf = _Elf(data)
    if elf.kind != 3:
        raise ElfError(f"the file type is {elf.kind}, and a shared library has 3")
    if elf.machine not in MACHINES:
        raise ElfError(f"the machine is {elf.machine}; known are {', '.join(MACHINES.values())}")
    needed, soname = _dynamic(elf)
    versions = tuple(_needed_versions(elf))
    undefined, exported = _symbols(elf)
    return ElfInfo(
        machine=MACHINES[elf.machine],
        soname=soname,
        needed=needed,
        glibc=_ceiling("GLIBC_", versions),
        glibcxx=_ceiling("GLIBCXX_", versions),
        undefined=undefined,
        exported=exported,
    )


def read_sections(data: bytes, names: Collection[str]) -> dict[str, tuple[int, memoryview]]:
    """The address and the content of each named section of an ELF file that has it, in the order of the file."""
    elf = _Elf(data)
    at = elf.unpack("<H", 62)[0]
    if at >= len(elf.sections):
        raise ElfError(f"the names of sections are in section {at} of {len(elf.sections)}")
    found = {}
    for section in elf.sections[1:]:
        name = elf.string(elf.sections[at], section.name)
        if name in names and section.kind != _SHT_NOBITS:
            found[name] = (section.address, memoryview(data)[section.offset : section.offset + section.size])
    return found


def read_symbols(data: bytes) -> Iterator[Symbol]:
    """The functions and objects that a shared library defines for others."""
    for name, info, section, address in _dynamic_symbols(_Elf(data)):
        if section and info >> 4:
            yield Symbol(name, address, info & 15 == _STT_GNU_IFUNC)


def _dynamic(elf: _Elf) -> tuple[tuple[str, ...], str | None]:
    tables = tuple(elf.of_kind(_SHT_DYNAMIC))
    if len(tables) != 1:
        raise ElfError(f"there are {len(tables)} dynamic sections, and a shared library has one")
    strings = elf.strings_of(tables[0])
    needed, soname = [], None
    for offset in range(tables[0].offset, tables[0].offset + tables[0].size, 16):
        tag, content = elf.unpack("<qQ", offset)
        if tag == 0:
            break
        if tag == _DT_NEEDED:
            needed.append(elf.string(strings, content))
        elif tag == _DT_SONAME:
            soname = elf.string(strings, content)
    return tuple(needed), soname


def _symbols(elf: _Elf) -> tuple[frozenset[str], frozenset[str]]:
    undefined, exported = set(), set()
    for name, info, section, _ in _dynamic_symbols(elf):
        if section == 0:
            undefined.add(name)
        elif info >> 4 != 0:  # a local symbol is not exported
            exported.add(name)
    return frozenset(undefined), frozenset(exported)


def _dynamic_symbols(elf: _Elf) -> Iterator[tuple[str, int, int, int]]:
    """Name, type and binding, section and address of each dynamic symbol."""
    left = _OVERLAP * len(elf.data)
    for table in elf.of_kind(_SHT_DYNSYM):
        strings = elf.strings_of(table)
        for offset in range(table.offset, table.offset + table.size, 24):
            name, info, _, section, address = elf.unpack("<IBBHQ", offset)
            if not name:
                continue
            text = elf.string(strings, name)
            left -= len(text)
            if left < 0:
                raise ElfError("the names of the symbols overlap without end")
            yield text, info, section, address


def _needed_versions(elf: _Elf) -> Iterator[str]:
    """The names in .gnu.version_r, a list of files with a list of versions each, linked by relative offsets."""
    for table in elf.of_kind(_SHT_VERNEED):
        strings = elf.strings_of(table)
        at, end = table.offset, table.offset + table.size
        left = table.size // 16  # at most as many entries as fit, even if the links form a loop
        for _ in range(table.info):
            _check_inside(at, end)
            _, count, _, aux, step = elf.unpack("<HHIII", at)
            entry = at + aux
            for _ in range(count):
                _check_inside(entry, end)
                left -= 1
                if left < 0:
                    raise ElfError("the version needs run in a circle")
                _, _, _, name, onward = elf.unpack("<IHHII", entry)
                yield elf.string(strings, name)
                if not onward:
                    break
                entry += onward
            if not step:
                break
            at += step


def _check_inside(at: int, end: int) -> None:
    if at + 16 > end:
        raise ElfError("the version needs do not end inside their section")


def _ceiling(prefix: str, versions: tuple[str, ...]) -> tuple[int, ...]:
    """The newest version with a prefix. GLIBC_PRIVATE and similar names have no number and are refused."""
    greatest: tuple[int, ...] = ()
    for version in versions:
        if not version.startswith(prefix):
            continue
        parts = version.removeprefix(prefix).split(".")
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise ElfError(f"the symbol version {version} is nobody's to need")
        greatest = max(greatest, tuple(int(part) for part in parts))
    return greatest
