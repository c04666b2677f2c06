"""Read the targets of the device code that nvcc puts into a library: a fat binary's headers, also if it is compressed.

NVIDIA does not document the layout. It was read from files that ``fatbinary`` of CUDA 12.8 to 13.5 wrote for
known targets and each compression mode. An entry's header states target and layout, so nothing has to be decompressed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator

from precast._builder import elf
from precast.core.capability import CompiledCode, ComputeCapability, DeviceCode, GpuTarget, Suffix, TargetKind
from precast.core.value import value
from precast.core.version import CudaVersion

SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_MAGIC, _HEADER, _ENTRY = 0xBA55ED50, struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHIIIQQQ")
_PTX, _ELF = 1, 2
_ARCHITECTURE, _FAMILY = 0x100000, 0x200000
# The version of a cubin in its entry's header, and the CUDA major that writes it for compute capabilities below 10.0.
_LAYOUTS = {7: 12, 8: 13}
# For 10.0 and newer, CUDA 12.8 and 12.9 write version 8 too. The list behind the header then tells: CUDA 13 adds this.
_SINCE_13 = 0x09
_SIZED = 4  # an attribute of that list that states its size
_MOST_IMAGES = 100_000  # flash-attn and torch have some thousand
_CONTENT = re.compile(rb"[^\0]")
_PACKED = 0x2000 | 0x8000  # LZ4 and Zstandard
_NOTE = ".note.nv.tkinfo"  # of a cubin: the program that wrote it, with its version. CUDA 12.8 and older write none
_COMPILER = re.compile(rb"\0Cuda compilation tools, release \d+\.\d+, V(\d+\.\d+\.\d+)\0")
# The first toolkit that writes each version of PTX (PTX ISA, "Release Notes").
_FIRST_TOOLKIT = {
    **{(7, minor): (11, minor) for minor in range(9)},
    **{(8, minor): (12, minor) for minor in range(6)},
    (8, 6): (12, 7),
    (8, 7): (12, 8),
    (8, 8): (12, 9),
}


class FatbinError(ValueError):
    """The bytes are not the expected fat binary; the message names the wrong field."""


@value(frozen=True)
class _Image:
    """One entry: its target, and what it says of its toolkit. ``major`` wrote the cubin, ``isa`` the PTX."""

    target: GpuTarget
    isa: CudaVersion | None
    major: int | None


def compiled(sections: Iterable[bytes | memoryview]) -> tuple[CompiledCode, ...]:
    """The machine code in the sections of a library whose compiler it notes, sorted. FatbinError as for ``read``."""
    images = (pair for content in sections for pair in _images(memoryview(content)))
    noted = {(image.target, _compiler(cubin)) for image, cubin in images if cubin is not None}
    return tuple(sorted((CompiledCode(target, "nvcc", found) for target, found in noted if found), key=str))


def read(sections: Iterable[bytes | memoryview], cuda_major: int | None) -> tuple[DeviceCode, ...]:
    """Each target in the sections of a library, with the oldest driver that loads it, sorted.

    ``cuda_major`` is that of the linked runtime. A cubin of an unknown toolkit counts as one of the oldest toolkit that
    the sections name, or CUDA 12. FatbinError if a header is damaged.
    """
    images = {image for content in sections for image, _ in _images(memoryview(content))}
    known = [image.major for image in images if image.major] + [image.isa.major for image in images if image.isa]
    oldest = cuda_major or min(known, default=12)
    codes = {DeviceCode(one.target, one.isa or CudaVersion(one.major or oldest, 0)) for one in images}
    return tuple(sorted(codes, key=lambda code: (code.target.kind.value, code.target.capability, str(code))))


def _images(content: memoryview) -> Iterator[tuple[_Image, memoryview | None]]:
    """The entries, with the bytes of those that are cubins and not packed."""
    at, left = 0, _MOST_IMAGES
    while (found := _CONTENT.search(content, at)) is not None:  # the linker aligns the fat binaries of several objects
        at = found.start()
        magic, _, header, size = _unpack(_HEADER, content, at)
        if magic != _MAGIC:
            raise FatbinError(f"the magic number at byte {at} is {magic:#x}, not {_MAGIC:#x}")
        end = at + header + size
        if end > len(content):
            raise FatbinError(f"a fat binary ends at byte {end}, and its section at {len(content)}")
        at += header
        while at < end:
            kind, _, header, size, _, _, minor, major, arch, _, _, flags, _, _ = _unpack(_ENTRY, content, at)
            if header < _ENTRY.size or at + header + size > end:
                raise FatbinError(f"the entry at byte {at} is longer than its fat binary")
            left -= 1
            if left < 0:
                raise FatbinError(f"more than {_MOST_IMAGES} entries in a fat binary")
            if kind == _PTX:
                isa = CudaVersion(*_FIRST_TOOLKIT.get((major, minor), (major + 4, minor)))
                yield _Image(_target(kind, arch, flags), isa, None), None
            elif kind == _ELF:
                target = _target(kind, arch, flags)
                attributes = content[at + _ENTRY.size : at + header]
                cubin = None if flags & _PACKED else content[at + header : at + header + size]
                yield _Image(target, None, _toolkit(target, minor, attributes)), cubin
            at += header + size


def _toolkit(target: GpuTarget, version: int, attributes: memoryview) -> int | None:
    """The CUDA major that wrote a cubin; None for a version that is not known."""
    if target.capability.major < 10 or version not in _LAYOUTS:
        return _LAYOUTS.get(version)
    return 13 if _SINCE_13 in _attributes(attributes) else 12


def _compiler(cubin: memoryview) -> str:
    """The version that a cubin notes; "" without one, as an ELF version says no more than a range of compilers."""
    try:
        notes = elf.read_sections(bytes(cubin), (_NOTE,))
    except elf.ElfError:
        return ""
    found = _COMPILER.search(notes[_NOTE][1]) if _NOTE in notes else None
    return found[1].decode() if found else ""


def _attributes(listed: memoryview) -> Iterator[int]:
    """The numbers of the attributes behind an entry's header, which are coded as those of ``.nv.info``."""
    at = 9  # behind the place and the size of the list, and a byte that is 0
    while at + 4 <= len(listed):
        form, number, size = struct.unpack_from("<BBH", listed, at)
        yield number
        at += 4 + (size if form == _SIZED else 0)


def _unpack(layout: struct.Struct, content: memoryview, at: int) -> tuple[int, ...]:
    if at + layout.size > len(content):
        raise FatbinError(f"its section ends at byte {len(content)}, and a header lies at {at}")
    return layout.unpack_from(content, at)


def _target(kind: int, arch: int, flags: int) -> GpuTarget:
    suffix: Suffix = "a" if flags & _ARCHITECTURE else "f" if flags & _FAMILY else ""
    try:
        found = TargetKind.PTX if kind == _PTX else TargetKind.SASS
        return GpuTarget(found, ComputeCapability.from_number(arch), suffix)
    except ValueError as error:
        raise FatbinError(f"an entry names no target: {error}") from error
