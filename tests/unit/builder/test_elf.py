"""ELF headers: real values from whole files, ElfError from damaged ones, and never anything else."""

from __future__ import annotations

import random
import struct
import sysconfig
from pathlib import Path

import pytest

from precast._builder.elf import CubinHeader, ElfError, ElfInfo, read_cubin, read_frames, read_shared_object
from precast.core.capability import GpuTarget
from tools.shared import binaries


def make_cubin(os_abi: int, abi_version: int, flags: int, machine: int = 190) -> bytes:
    """The least that is a cubin: a header, one section header, one byte of content at the end of the file."""
    ident = b"\x7fELF\x02\x01\x01" + bytes([os_abi, abi_version]) + bytes(7)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64, flags, 64, 56, 0, 64, 2, 1)
    sections = bytes(64) + struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 192, 1, 0, 0, 1, 0)
    return ident + header + sections + b"\0"


def shared_object() -> bytes:
    """A library that every CPython has: an extension module of its own, built like ours."""
    folder = Path(sysconfig.get_config_var("DESTSHARED"))
    return min(folder.glob("*.so")).read_bytes()


@pytest.mark.parametrize(
    ("os_abi", "version", "flags", "target", "layout"),
    [
        (51, 7, 0x00460546, "sm_70", 12),
        (51, 7, 0x005A055A, "sm_90", 12),
        (51, 7, 0x005A0D5A, "sm_90a", 12),
        (65, 8, 0x06005A04, "sm_90", 13),
        (65, 8, 0x06007902, "sm_121", 13),
        (65, 8, 0x06006402, "sm_100", 13),
        (65, 8, 0x0600640A, "sm_100a", 13),
    ],
)
def test_both_cubin_layouts(os_abi: int, version: int, flags: int, target: str, layout: int) -> None:
    """The values are those of cubins that NVRTC 12.1, 12.9 and 13.0 wrote."""
    assert read_cubin(make_cubin(os_abi, version, flags)) == CubinHeader(GpuTarget.parse(target), layout)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF file"),
        (b"\x7fELF", "not an ELF file"),
        (b"PTX" * 30, r"not an ELF file \(90 bytes, first four b'PTXP'\)"),
        (b"\x7fELF\x01\x01" + bytes(60), "64-bit"),
        (make_cubin(51, 7, 0x5A, machine=62), "the ELF machine is 62"),
        (make_cubin(66, 9, 0x5A), "unknown cubin layout: OS ABI 66, ABI version 9"),
        (make_cubin(51, 8, 0x5A), "unknown cubin layout"),
        (make_cubin(51, 7, 0x07), "sm_7"),
        (make_cubin(51, 7, 0x850), "no target|sm_80"),
    ],
)
def test_what_is_no_cubin_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        read_cubin(data)


@pytest.mark.parametrize(("length", "fits"), [(0, True), (185, True), (186, False), (2**63, False), (2**64 - 1, False)])
def test_a_segment_may_end_where_the_file_does_and_not_behind_it(length: int, fits: bool) -> None:
    """One program header behind the section headers, for a segment from byte 64 on; the file has 249 bytes."""
    data = bytearray(make_cubin(51, 7, 0x5A) + struct.pack("<IIQQQQQQ", 1, 5, 64, 0, 0, length, length, 1))
    struct.pack_into("<Q", data, 32, 193)
    struct.pack_into("<H", data, 56, 1)
    assert len(data) == 249
    if fits:
        read_cubin(bytes(data))
    else:
        with pytest.raises(ElfError, match=rf"segment 0 ends at byte {64 + length}, and the file at 249"):
            read_cubin(bytes(data))


@pytest.mark.parametrize("cubin", [make_cubin(51, 7, 0x5A), make_cubin(65, 8, 0x5A00)])
def test_a_truncated_cubin_is_refused_at_every_length(cubin: bytes) -> None:
    for length in range(len(cubin)):
        with pytest.raises(ElfError):
            read_cubin(cubin[:length])


def test_a_shared_object_tells_its_needs() -> None:
    info = read_shared_object(shared_object())
    assert info.machine in {"x86_64", "aarch64"}
    assert (2, 2) < info.glibc < (3, 0)
    assert any(name.startswith("PyInit_") for name in info.exported)
    assert info.undefined and not info.undefined & info.exported


def test_a_truncated_shared_object_is_refused() -> None:
    data = shared_object()
    for length in (*range(0, 4096, 7), *range(4096, len(data), max(1, len(data) // 50)), len(data) - 1):
        with pytest.raises(ElfError):
            read_shared_object(data[:length])


@pytest.mark.parametrize("seed", range(4))
def test_bit_flips_give_an_error_or_a_value_but_never_a_crash(seed: int) -> None:
    """Flips where the tables are; wherever they hit, the answer has the right shape, or is ElfError."""
    data = shared_object()
    chance = random.Random(seed)
    tables = [*range(64), *range(len(data) - 64 * 30, len(data))]
    refused = 0
    for _ in range(400):
        flipped = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            flipped[chance.choice(tables) if chance.random() < 0.7 else chance.randrange(len(data))] ^= (
                1 << chance.randrange(8)
            )
        try:
            info = read_shared_object(bytes(flipped))
        except ElfError:
            refused += 1
        else:
            assert isinstance(info, ElfInfo) and info.machine in {"x86_64", "aarch64"}
    assert refused > 20


def test_a_cubin_is_no_shared_object_and_the_other_way_round() -> None:
    with pytest.raises(ElfError, match="ELF type"):
        read_shared_object(make_cubin(51, 7, 0x5A))
    with pytest.raises(ElfError, match="machine"):
        read_cubin(shared_object())


def overlapping(names: int, characters: int) -> bytes:
    """A library whose symbols' names each begin one character after the last, in one long text."""
    strings = b"\0" + b"a" * characters + b"\0"
    symbols = bytes(24) + b"".join(struct.pack("<IBBHQQ", 1 + n, 0x12, 0, 0, 0, 0) for n in range(names))
    text = b"\0.dynsym\0.dynstr\0.dynamic\0.text\0"
    parts, at, headers = [symbols, strings, bytes(16), bytes(16), text], 64, [bytes(64)]
    kinds = ((".dynsym", 11, 2, 24), (".dynstr", 3, 0, 0), (".dynamic", 6, 2, 16), (".text", 1, 0, 0), ("", 3, 0, 0))
    for (name, kind, link, size), part in zip(kinds, parts, strict=True):
        place = text.index(name.encode() + b"\0")
        headers.append(struct.pack("<IIQQQQIIQQ", place, kind, 0, 0, at, len(part), link, 1, 1, size))
        at += len(part)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at, 0, 64, 56, 0, 64, 6, 5)
    return ident + header + b"".join(parts) + b"".join(headers)


def test_names_that_overlap_take_no_memory_without_end() -> None:
    assert len(read_shared_object(overlapping(5, 100)).undefined) == 5
    with pytest.raises(ElfError, match="names or entries overlap without end"):
        read_shared_object(overlapping(2_000, 50_000))


def test_the_reader_of_the_audit_has_the_same_bounds() -> None:
    assert len(binaries.read_library(overlapping(5, 100)).undefined) == 5
    with pytest.raises(binaries.Unreadable, match="overlap without end"):
        binaries.read_library(overlapping(2_000, 50_000))
    endless = bytearray(overlapping(5, 100))
    table = int.from_bytes(endless[40:48], "little") + 4 * 64  # .text
    endless[table + 4 : table + 8] = (8).to_bytes(4, "little")  # SHT_NOBITS
    endless[table + 32 : table + 40] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(binaries.Unreadable, match=r"section \.text: SHT_NOBITS of 1099511627776 bytes"):
        binaries.read_library(bytes(endless))


SYMBOLS, STRINGS, DYNAMIC, VERNEED = 11, 3, 6, 0x6FFFFFFE
TEXTS = ("libc.so.6", "GLIBC_2.17", "GLIBC_2.28", "GLIBCXX_3.4.9", "GLIBCXX_3.4.22", "local", "weak", "global", "taken")
TABLE = b"\0" + b"".join(text.encode() + b"\0" for text in TEXTS)


def at(text: str) -> int:
    return TABLE.index(text.encode() + b"\0")


def library(symbols: bytes = b"", needs: bytes = b"", count: int = 1, link: int = 1, tail: bytes = b"") -> bytes:
    """A library of these symbols and version needs; section 1 has its names."""
    parts = [
        (STRINGS, 0, 0, TABLE),
        (SYMBOLS, link, 0, symbols),
        (DYNAMIC, 1, 0, bytes(16)),
        (VERNEED, 1, count, needs),
    ]
    place, headers = 64, [bytes(64)]
    for kind, to, info, data in parts:
        headers.append(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, place, len(data), to, info, 1, 0))
        place += len(data)
    start = place + len(tail)
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, 64, len(headers), 0)
    body = b"".join(data for *_, data in parts)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + header + body + tail + b"".join(headers)


def symbol(text: str, binding: int, section: int) -> bytes:
    return struct.pack("<IBBHQQ", at(text), binding << 4 | 2, 0, section, 0, 0)


def need(*versions: str, onward: int = 16, step: int = 0, aux: int = 16, count: int | None = None) -> bytes:
    """One file of .gnu.version_r, and the versions that are needed of it."""
    whole = struct.pack("<HHIII", 1, len(versions) if count is None else count, at("libc.so.6"), aux, step)
    for number, version in enumerate(versions, 1):
        whole += struct.pack("<IHHII", 0, 0, 2, at(version), onward if number < len(versions) else 0)
    return whole


def test_what_is_taken_and_what_is_offered_to_others() -> None:
    names = {"local": (0, 1), "global": (1, 1), "weak": (2, 1), "taken": (1, 0)}
    symbols = bytes(24) + b"".join(symbol(name, *facts) for name, facts in names.items())
    info = read_shared_object(library(symbols, count=0))
    assert info.exported == {"global", "weak"}
    assert info.undefined == {"taken"}


def test_the_newest_versions_of_all_files_are_the_ceilings() -> None:
    first = need("GLIBC_2.28", "GLIBCXX_3.4.9", step=48)
    second = need("GLIBCXX_3.4.22", "GLIBC_2.17")
    info = read_shared_object(library(needs=first + second, count=2))
    assert (info.glibc, info.glibcxx) == ((2, 28), (3, 4, 22))
    # The count of the section decides, not what lies behind.
    info = read_shared_object(library(needs=first + second, count=1))
    assert (info.glibc, info.glibcxx) == ((2, 28), (3, 4, 9))
    # Without a step this file is the last one, and without a link this version is.
    info = read_shared_object(library(needs=need("GLIBC_2.17") + second, count=2))
    assert (info.glibc, info.glibcxx) == ((2, 17), ())
    info = read_shared_object(library(needs=need("GLIBC_2.17", "GLIBC_2.28", onward=0)))
    assert info.glibc == (2, 17)


def test_a_version_need_may_end_where_its_section_does_and_not_behind_it() -> None:
    whole = need("GLIBC_2.17")
    assert read_shared_object(library(needs=whole, tail=bytes(64))).glibc == (2, 17)
    for short in (whole[:-1], whole[:15], b""):
        with pytest.raises(ElfError, match="the list of symbol versions is longer than its section"):
            read_shared_object(library(needs=short, tail=bytes(64)))


def test_version_needs_without_end_are_refused() -> None:
    one = struct.pack("<IHHII", 0, 0, 2, at("GLIBC_2.17"), 16)
    several = struct.pack("<HHIII", 1, 99, at("libc.so.6"), 16, 0) + one * 4
    with pytest.raises(ElfError, match="the list of symbol versions is longer than its section"):
        read_shared_object(library(needs=several, tail=bytes(64)))


@pytest.mark.parametrize(("link", "fits"), [(1, True), (4, True), (5, False), (2**32 - 1, False)])
def test_a_section_refers_to_one_that_there_is(link: int, fits: bool) -> None:
    data = library(bytes(24), needs=need("GLIBC_2.17"), link=link)
    if fits:
        read_shared_object(data)
    else:
        with pytest.raises(ElfError, match=f"a section refers to section {link}, and there are 5"):
            read_shared_object(data)


def test_a_cubin_without_symbols_has_no_known_frames() -> None:
    with pytest.raises(ElfError, match="no symbol table"):
        read_frames(make_cubin(51, 7, 0x5A))
