"""Targets of fat binaries: every kind and compression, and damaged bytes. The headers are those of CUDA 13.5."""

from __future__ import annotations

import struct

import pytest

from precast._builder import fatbin

PTX, SASS = 1, 2
PLAIN, LZ4, ZSTD = 0x11, 0x2011, 0x8011
ARCHITECTURE, FAMILY = 0x100000, 0x200000
# The first bytes of a cubin of CUDA 12 and of CUDA 13, as they are and in an LZ4 block: ten bytes and 54 zeros.
CUBIN_12 = b"\x7fELF\x02\x01\x01\x33\x07".ljust(64, b"\0")
CUBIN_13 = b"\x7fELF\x02\x01\x01\x41\x08".ljust(64, b"\0")
LZ4_13 = b"\xaf" + CUBIN_13[:10] + b"\x01\x00\x23"


def entry(kind: int, arch: int, flags: int, payload: bytes = CUBIN_12, isa: tuple[int, int] = (8, 8)) -> bytes:
    """One image with its header."""
    padded = payload.ljust(-(-len(payload) // 8) * 8, b"\0")
    head = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(padded), 0, 0, isa[1], isa[0], arch, 0, 0, flags, 0, len(payload)
    )
    return head + padded


def fat(*entries: bytes) -> bytes:
    """A fat binary of these entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def targets(*sections: bytes, cuda_major: int | None = None) -> list[str]:
    return [str(code) for code in fatbin.read(sections, cuda_major)]


@pytest.mark.parametrize("packed", [PLAIN, LZ4, ZSTD])
@pytest.mark.parametrize(
    ("arch", "suffix", "name"), [(90, 0, "90"), (90, ARCHITECTURE, "90a"), (100, FAMILY, "100f"), (121, 0, "121")]
)
def test_each_target_is_read_from_its_header_however_it_is_compressed(
    packed: int, arch: int, suffix: int, name: str
) -> None:
    body = fat(entry(SASS, arch, packed | suffix), entry(PTX, arch, packed | suffix))
    assert targets(body) == [f"compute_{name}:12.9", f"sm_{name}:12.0"]


@pytest.mark.parametrize(
    ("payload", "flags", "driver"),
    [(CUBIN_12, PLAIN, "12.0"), (CUBIN_13, PLAIN, "13.0"), (LZ4_13, LZ4, "13.0")],
    ids=["12", "13", "packed"],
)
def test_the_toolkit_of_a_cubin_is_read_from_its_own_header(payload: bytes, flags: int, driver: str) -> None:
    assert targets(fat(entry(SASS, 80, flags, payload))) == [f"sm_80:{driver}"]


def test_the_linked_runtime_says_the_toolkit_of_what_does_not() -> None:
    body = fat(entry(SASS, 80, ZSTD))
    assert targets(body, cuda_major=13) == ["sm_80:13.0"] and targets(body) == ["sm_80:12.0"]


@pytest.mark.parametrize(("isa", "driver"), [((8, 0), "12.0"), ((8, 7), "12.8"), ((9, 0), "13.0"), ((7, 8), "11.8")])
def test_ptx_needs_the_driver_of_its_toolkit(isa: tuple[int, int], driver: str) -> None:
    assert targets(fat(entry(PTX, 80, PLAIN, isa=isa))) == [f"compute_80:{driver}"]


def test_sections_hold_several_fat_binaries_with_padding() -> None:
    first, second = fat(entry(SASS, 80, PLAIN)), fat(entry(SASS, 75, PLAIN), entry(SASS, 80, PLAIN))
    assert targets(first + b"\0" * 24 + second, fat(entry(SASS, 90, PLAIN))) == [
        "sm_75:12.0",
        "sm_80:12.0",
        "sm_90:12.0",
    ]


def test_other_kinds_of_entries_are_passed_over() -> None:
    assert targets(fat(entry(8, 80, PLAIN), entry(SASS, 80, PLAIN))) == ["sm_80:12.0"]


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (b"\x01" + fat(entry(SASS, 80, PLAIN)), "magic number"),
        (fat(entry(SASS, 80, PLAIN))[:-8], "ends at byte"),
        (fat(entry(SASS, 80, PLAIN)[:40]), "a header lies at"),
        (fat(entry(SASS, 9999, PLAIN)), "names no target"),
        (fat(struct.pack("<HHI", 2, 0x101, 0) + entry(SASS, 80, PLAIN)[8:]), "ends behind"),
        (b"\x50\xed\x55\xba", "a header lies at"),
    ],
)
def test_damaged_bytes_are_refused(damaged: bytes, why: str) -> None:
    with pytest.raises(fatbin.FatbinError, match=why):
        targets(damaged)
