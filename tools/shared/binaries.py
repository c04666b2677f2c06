"""Read the facts of shared libraries, cubins and PTX with pyelftools, without code from the build.

Only the marks of CPU levels are shared with the build (``flags``).

The audit compares these facts with the build's claims, so that a bug in the build's own parser cannot hide itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from precast._builder import flags

T = TypeVar("T")
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_FAMILY_TABLE = "precast_families"
_ENOUGH = 16  # a library of this size has a handful by chance
_TOOLS = re.compile(rb"Cuda compilation tools, release [\d.]+, V(\d+\.\d+\.\d+)")
_ABSOLUTE = re.compile(rb"(?<![\w.:/<])/(?:[\w.+@-]+/)+[\w.+@-]+")
# Folders that every Linux has; a library may name them.
_EVERYWHERE = ("/lib/", "/lib64/", "/proc/", "/sys/", "/dev/")


_COMPRESSED = 0x800  # SHF_COMPRESSED of elf(5)
_OVERLAP = 16  # names may share bytes: limit of their total size, as a multiple of the file size
_MOST_FAMILIES = 1024


class Unreadable(ValueError):
    """The bytes do not have the format that the file name claims."""


@dataclass(frozen=True, slots=True)
class Undefined:
    """A symbol that a library needs from another one; ``version`` is for example ``GLIBC_2.14``, or None."""

    name: str
    version: str | None
    weak: bool

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """A host library as the audit sees it."""

    machine: str
    soname: str | None
    needed: tuple[str, ...]
    run_path: str | None
    glibc: tuple[int, ...]
    glibcxx: tuple[int, ...]
    exported: frozenset[str]
    undefined: tuple[Undefined, ...]
    families: tuple[str, ...]
    cpu_levels: tuple[str, ...]
    debug: bool
    compiler: str
    text_relocations: bool
    executable_stack: bool


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device file as the audit sees it; ``nvrtc`` and ``isa`` are None if the format does not record them."""

    target: str
    layout: int | None
    nvrtc: str | None
    isa: str | None
    entries: frozenset[str]


def read_library(data: bytes) -> LibraryFacts:
    """Read a shared library; raise Unreadable for any error of pyelftools."""
    try:
        return _library(ELFFile(io.BytesIO(data)), data)
    except (ELFError, KeyError, ValueError, TypeError, AttributeError, IndexError, UnicodeDecodeError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def read_cubin(data: bytes) -> DeviceFacts:
    """Read a cubin of either layout."""
    try:
        elf = ELFFile(io.BytesIO(data))
        if elf["e_machine"] != "EM_CUDA":
            raise Unreadable(f"machine {elf['e_machine']}")
        abi, version, bits = data[7], elf["e_ident"]["EI_ABIVERSION"], int(elf["e_flags"])
        if (abi, version) == (51, 7):
            major, number, suffix = 12, bits % 256, "a" if bits // 0x800 % 2 else ""
        elif (abi, version) == (65, 8):
            major, number, suffix = 13, bits // 256 % 256, _noted_suffix(elf, data)
        else:
            raise Unreadable(f"OS ABI {abi}, ABI version {version}")
        sections = dict(_bounded(((section.name, section) for section in elf.iter_sections()), data))
        entries = frozenset(name.removeprefix(".text.") for name in sections if name.startswith(".text."))
    except (ELFError, KeyError, ValueError, TypeError, AttributeError, IndexError, UnicodeDecodeError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    tools = _TOOLS.search(data)
    return DeviceFacts(f"sm_{number}{suffix}", major, tools[1].decode() if tools else None, None, entries)


def read_ptx(data: bytes) -> DeviceFacts:
    """Read a PTX file."""
    target = re.findall(rb"^\.target\s+sm_(\w+)", data, re.MULTILINE)
    isa = re.findall(rb"^\.version\s+([\d.]+)", data, re.MULTILINE)
    if len(target) != 1 or len(isa) != 1 or b"\0" in data:
        raise Unreadable(f"{len(target)} .target lines, {len(isa)} .version lines, {data.count(0)} NUL bytes")
    tools = _TOOLS.search(data)
    entries = re.findall(rb"^\.visible \.entry (\w+)\(", data, re.MULTILINE)
    return DeviceFacts(
        f"compute_{target[0].decode()}",
        None,
        tools[1].decode() if tools else None,
        isa[0].decode(),
        frozenset(entry.decode() for entry in entries),
    )


def absolute_paths(data: bytes) -> list[str]:
    """Every absolute path inside a binary, except those that every Linux has."""
    found = {match.decode() for match in _ABSOLUTE.findall(data)}
    return sorted(path for path in found if not path.startswith(_EVERYWHERE))


def _library(elf: Any, data: bytes) -> LibraryFacts:
    if elf["e_type"] != "ET_DYN":
        raise Unreadable(f"type {elf['e_type']}")
    sections = dict(_bounded(((section.name, section) for section in elf.iter_sections()), data))
    dynamic = [section for section in sections.values() if isinstance(section, DynamicSection)]
    tags: list[Any] = [tag for section in dynamic for tag in section.iter_tags()]
    by_tag = {tag.entry.d_tag: tag for tag in tags}
    versions = [name for name, _ in _bounded(((name, None) for name in _needed_versions(sections.values())), data)]
    run_path = [getattr(tag, "runpath", None) or getattr(tag, "rpath", None) for tag in tags]
    flags = by_tag["DT_FLAGS"].entry.d_val if "DT_FLAGS" in by_tag else 0
    stack = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_STACK"]
    comment = _content(sections[".comment"], data) if ".comment" in sections else b""
    code = _content(sections[".text"], data)
    families = tuple(_families(elf, sections))
    return LibraryFacts(
        machine=_MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        soname=by_tag["DT_SONAME"].soname if "DT_SONAME" in by_tag else None,
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        run_path=next((path for path in run_path if path), None),
        glibc=_greatest("GLIBC_", versions),
        glibcxx=_greatest("GLIBCXX_", versions),
        exported=frozenset(name for name, _ in _bounded(((name, None) for name in _exports(sections.values())), data)),
        undefined=tuple(one for _, one in _bounded(((one.name, one) for one in _undefined(sections)), data)),
        families=families,
        cpu_levels=_cpu_levels(code, str(elf["e_machine"])) if families else (),
        debug=".debug_info" in sections,
        compiler=comment.split(b"\0")[0].decode("utf-8", "replace").rpartition(" ")[2],
        text_relocations="DT_TEXTREL" in by_tag or bool(flags & 4),
        executable_stack=not stack or bool(stack[0]["p_flags"] & 1),
    )


def _bounded(named: Iterable[tuple[str, T]], data: bytes) -> Iterator[tuple[str, T]]:
    """The same items; Unreadable if overlapping names would expand a megabyte to gigabytes."""
    left = _OVERLAP * len(data)
    for name, what in named:
        left -= len(name)
        if left < 0:
            raise Unreadable("the names in it overlap without end")
        yield name, what


def _content(section: Any, data: bytes) -> bytes:
    """The bytes of a section. pyelftools alone would create any number of zeros, and decompress without a limit."""
    if section["sh_type"] == "SHT_NOBITS" or section["sh_flags"] & _COMPRESSED or section["sh_size"] > len(data):
        raise Unreadable(f"section {section.name}: {section['sh_type']} of {section['sh_size']} bytes, or compressed")
    found: bytes = section.data()
    return found


def _needed_versions(sections: Iterable[Any]) -> Iterator[str]:
    for section in sections:
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                yield from (version.name for version in versions)


def _greatest(prefix: str, versions: Iterable[str]) -> tuple[int, ...]:
    mine = [version.removeprefix(prefix) for version in versions if version.startswith(prefix)]
    return max((tuple(int(part) for part in version.split(".")) for version in mine), default=())


def _exports(sections: Iterable[Any]) -> Iterator[str]:
    for section in sections:
        if isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            for symbol in section.iter_symbols():
                if symbol.name and symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL":
                    yield symbol.name


def _undefined(sections: dict[str, Any]) -> Iterator[Undefined]:
    """The undefined names of the dynamic symbol table, with the versions that they require."""
    versions = {
        entry["vna_other"]: entry.name
        for section in sections.values()
        if isinstance(section, GNUVerNeedSection)
        for _, entries in section.iter_versions()
        for entry in entries
    }
    numbers = next((section for section in sections.values() if isinstance(section, GNUVerSymSection)), None)
    for index, symbol in enumerate(sections[".dynsym"].iter_symbols()):
        if symbol.name and symbol["st_shndx"] == "SHN_UNDEF":
            number = None if numbers is None else numbers.get_symbol(index)["ndx"]
            yield Undefined(symbol.name, versions.get(number), symbol["st_info"]["bind"] == "STB_WEAK")


def symbols_of(path: Path) -> Iterator[str]:
    """The exported names of a shared library on disk, such as a library of an installed torch, which may be large."""
    with path.open("rb") as file:
        try:
            yield from _exports(ELFFile(file).iter_sections())
        except ELFError as error:
            raise Unreadable(f"{path}: {error}") from error


def _families(elf: Any, sections: dict[str, Any]) -> Iterator[str]:
    """The names in the registration table, by relocations: pointer -> family -> its first field -> text."""
    table = sections.get(_FAMILY_TABLE)
    if table is None:
        return  # no family at all, which contradicts the manifest
    if table["sh_size"] > 8 * _MOST_FAMILIES:
        raise Unreadable(f"a table of families of {table['sh_size']} bytes")
    points_to = {
        relocation["r_offset"]: relocation["r_addend"]
        for section in sections.values()
        if isinstance(section, RelocationSection)
        for relocation in section.iter_relocations()
        if relocation.is_RELA()
    }
    for address in range(table["sh_addr"], table["sh_addr"] + table["sh_size"], 8):
        yield _text_at(elf, points_to[points_to[address]])


def _text_at(elf: Any, address: int) -> str:
    for segment in elf.iter_segments():
        if segment["p_type"] == "PT_LOAD" and 0 <= address - segment["p_vaddr"] < segment["p_filesz"]:
            data: bytes = segment.data()[address - segment["p_vaddr"] :]
            return data.partition(b"\0")[0].decode("ascii")
    raise Unreadable(f"no segment holds address {address:#x}")


def _cpu_levels(code: bytes, machine: str) -> tuple[str, ...]:
    """The levels whose mark occurs often enough; a level without a mark is in every library with kernels."""
    levels = flags.cpu_levels(_MACHINES[machine])
    marked = (level.name for level in levels if level.mark is None or len(re.findall(level.mark, code)) >= _ENOUGH)
    return tuple(marked)


def _noted_suffix(elf: Any, data: bytes) -> str:
    """The suffix from a note: the only place where a CUDA 13 cubin distinguishes `sm_90a` from `sm_90`."""
    for section in elf.iter_sections():
        if section.name == ".note.nv.tkinfo":
            noted = re.search(rb"-arch sm_\d+([af]?)\b", _content(section, data))
            return noted[1].decode() if noted else ""
    return ""
