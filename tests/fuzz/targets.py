"""What reads files that somebody else may have made, each with the one error it may raise and what it must not accept.

A target takes bytes and returns whether they were accepted. Anything but the documented error is a crash; accepting
what does not say of itself what is reported is a lie, and an AssertionError.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable

from precast._abi.build_info import BuildInfo, ManifestError
from precast._build import elf, packing
from precast._build.entry import BuildKey, Meta, NotWhole

PACKED_BYTES = 512  # of the image in the seed


def manifest(data: bytes) -> bool:
    """``build_info.json``. What is accepted is printed and read again as the same value."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # the loader reports this before the parser is asked
        return False
    try:
        info = BuildInfo.from_json(text)
    except ManifestError:
        return False
    assert BuildInfo.from_json(info.to_json()) == info
    files = [*info.host, *info.device]
    assert not [file for file in files if file.path.startswith("/") or ".." in file.path.split("/")], "it leaves _C"
    assert len({file.path for file in files}) == len(files), "two claims about one file"
    return True


def meta(data: bytes) -> bool:
    """``meta.json`` of the cache. What is accepted names a file beside it, and the key of its own inputs."""
    try:
        found = Meta.from_json(data)
    except NotWhole:
        return False
    assert found.key == BuildKey("", found.inputs).digest, "the key of something else"
    assert "/" not in found.payload and found.payload not in {".", "..", "meta.json", "build.log"}
    assert Meta.from_json(found.to_json().encode()) == found
    assert json.loads(data)["sha256"] == found.sha256
    return True


def shared_object(data: bytes) -> bool:
    """The dynamic section of a library. What is reported as needed or exported is spelled out in the file."""
    try:
        info = elf.read_shared_object(data)
    except elf.ElfError:
        return False
    assert data[:4] == b"\x7fELF"
    for name in (*info.needed, *info.exported):
        assert name.encode() in data or "\\x" in name, f"{name!r} is nowhere in the file"  # \\x: a byte that is no text
    return True


def cubin(data: bytes) -> bool:
    """The header of device code. What is accepted has one of the two known layouts, and the target that it says."""
    try:
        info = elf.read_cubin(data)
    except elf.ElfError:
        return False
    assert data[:4] == b"\x7fELF" and (data[7], data[8]) in {(51, 7), (65, 8)}, "a layout that nobody knows"
    flags = int.from_bytes(data[48:52], "little")
    assert info.target.capability.number == (flags & 0xFF if data[8] == 7 else flags >> 8 & 0xFF)
    return True


def packed(data: bytes) -> bool:
    """Device code as a wheel holds it. What is accepted is a whole .xz of the size that was asked for."""
    try:
        image = packing.unpack(data, PACKED_BYTES)
    except packing.NotPacked:
        return False
    assert len(image) == PACKED_BYTES and lzma.decompress(data) == image
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "manifest": manifest,
    "meta": meta,
    "shared_object": shared_object,
    "cubin": cubin,
    "packed": packed,
}
