"""Read the targets of the device code that nvcc puts into a library: a fat binary's headers, also if it is compressed.

NVIDIA does not document the layout. It was read from files that ``fatbinary`` of CUDA 13.5 wrote for known targets and
each compression mode. An entry's header states its target, so nothing has to be decompressed; only the first bytes of
an LZ4 block are, to read a cubin's own header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from precast._abi.capability import ComputeCapability, DeviceCode, GpuTarget, Suffix, TargetKind
from precast._abi.value import value
from precast._abi.version import CudaVersion

SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_MAGIC, _HEADER, _ENTRY = 0xBA55ED50, struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHIIIQQQ")
_PTX, _ELF = 1, 2
_LZ4, _ZSTD, _ARCHITECTURE, _FAMILY = 0x2000, 0x8000, 0x100000, 0x200000
_ELF_HEADER = 64
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
    """One entry: its target, and what it says of its toolkit. ``isa`` is a PTX version, ``layout`` that of a cubin."""

    target: GpuTarget
    isa: CudaVersion | None
    layout: int | None


def read(sections: Iterable[bytes | memoryview], cuda_major: int | None) -> tuple[DeviceCode, ...]:
    """Each target in the sections of a library, with the oldest driver that loads it, sorted.

    ``cuda_major`` is that of the linked runtime. A cubin of an unknown toolkit counts as one of the oldest toolkit that
    the sections name, or CUDA 12. FatbinError if a header is damaged.
    """
    images = [image for content in sections for image in _images(memoryview(content))]
    known = [image.layout for image in images if image.layout] + [image.isa.major for image in images if image.isa]
    major = cuda_major or min(known, default=12)
    codes = {DeviceCode(image.target, image.isa or CudaVersion(major, 0)) for image in images}
    return tuple(sorted(codes, key=lambda code: (code.target.kind.value, code.target.capability, str(code))))


def _images(content: memoryview) -> Iterator[_Image]:
    at = 0
    while at < len(content):
        if content[at] == 0:  # the linker aligns the fat binaries of several objects
            at += 1
            continue
        magic, _, header, size = _unpack(_HEADER, content, at)
        if magic != _MAGIC:
            raise FatbinError(f"the magic number at {at} is {magic:#x}, not {_MAGIC:#x}")
        end = at + header + size
        if end > len(content):
            raise FatbinError(f"a fat binary ends at byte {end} of {len(content)}")
        at += header
        while at < end:
            kind, _, header, size, _, _, minor, major, arch, _, _, flags, _, _ = _unpack(_ENTRY, content, at)
            if header < _ENTRY.size or at + header + size > end:
                raise FatbinError(f"an entry at {at} ends behind its fat binary")
            if kind in (_PTX, _ELF):
                isa = CudaVersion(*_FIRST_TOOLKIT.get((major, minor), (major + 4, minor))) if kind == _PTX else None
                target = _target(kind, arch, flags)
                # CUDA 12.8 and 12.9 write cubins for compute capability 10.0 and newer as CUDA 13 does.
                tells = kind == _ELF and target.capability.major < 10
                layout = _layout(content[at + header : at + header + size], flags) if tells else None
                yield _Image(target, isa, layout)
            at += header + size


def _unpack(layout: struct.Struct, content: memoryview, at: int) -> tuple[int, ...]:
    if at + layout.size > len(content):
        raise FatbinError(f"it ends at byte {len(content)}, and a header lies at {at}")
    return layout.unpack_from(content, at)


def _target(kind: int, arch: int, flags: int) -> GpuTarget:
    suffix: Suffix = "a" if flags & _ARCHITECTURE else "f" if flags & _FAMILY else ""
    try:
        found = TargetKind.PTX if kind == _PTX else TargetKind.SASS
        return GpuTarget(found, ComputeCapability.from_number(arch), suffix)
    except ValueError as error:
        raise FatbinError(f"an entry names no target: {error}") from error


def _layout(payload: memoryview, flags: int) -> int | None:
    """The CUDA major whose cubin layout this is, as far as its first bytes can be read and tell."""
    if flags & _ZSTD:
        return None
    head = _lz4_prefix(payload, _ELF_HEADER) if flags & _LZ4 else bytes(payload[:_ELF_HEADER])
    if len(head) < _ELF_HEADER or head[:4] != b"\x7fELF":
        return None
    return {(51, 7): 12, (65, 8): 13}.get((head[7], head[8]))


def _lz4_prefix(block: memoryview, most: int) -> bytes:
    """The first bytes of what an LZ4 block unpacks to (LZ4 Block Format Description); fewer if the block is damaged."""
    found, at = bytearray(), 0
    while len(found) < most and at < len(block):
        token = block[at]
        literals, at = _lz4_length(block, at + 1, token >> 4)
        found += block[at : at + literals]
        at += literals
        if len(found) >= most or at + 2 > len(block):
            break
        offset = block[at] | block[at + 1] << 8
        length, at = _lz4_length(block, at + 2, token & 15)
        if not 0 < offset <= len(found):
            break
        for _ in range(min(length + 4, most - len(found))):
            found.append(found[-offset])
    return bytes(found[:most])


def _lz4_length(block: memoryview, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while at < len(block):
            length += block[at]
            at += 1
            if block[at - 1] != 255:
                break
    return length, at
