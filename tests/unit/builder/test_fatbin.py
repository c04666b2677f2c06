"""Targets of fat binaries: every kind and compression, and damaged bytes. The headers are those of CUDA 13.5."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from precast._builder import fatbin
from tests.kit import elves, spawn

PTX, SASS = 1, 2
PLAIN, LZ4, ZSTD = 0x11, 0x2011, 0x8011
ARCHITECTURE, FAMILY = 0x100000, 0x200000
# The version of a cubin of CUDA 12 and of CUDA 13, and what 12.9 and 13.0 list behind the header of one for 10.0.
CUBIN_12, CUBIN_13 = (1, 7), (1, 8)
LISTED_12 = "4800000010000000000202010002050500020300000206010000000000000000"
LISTED_13 = "48000000100000000002090000040b0800000000000000000000000000000000"


def entry(
    kind: int, arch: int, flags: int, isa: tuple[int, int] | None = None, listed: str = "",
    payload: bytes = b"\x7fELF".ljust(64, b"\0"),
) -> bytes:  # fmt: skip
    """One image with its header. ``isa`` is the version of PTX or of a cubin; ``listed`` lies behind the header."""
    major, minor = isa or ((8, 8) if kind == PTX else CUBIN_12)
    behind = bytes.fromhex(listed)
    size = 64 + len(behind)
    head = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 0x101, size, len(payload), 0, 0, minor, major, arch, 0, 0, flags, 0, len(payload)
    )
    return head + behind + payload


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


@pytest.mark.parametrize("packed", [PLAIN, LZ4, ZSTD])
@pytest.mark.parametrize(
    ("arch", "version", "listed", "driver"),
    [
        (80, CUBIN_12, "", "12.0"),
        (80, CUBIN_13, "", "13.0"),
        (100, CUBIN_13, LISTED_12, "12.0"),
        (120, CUBIN_13, LISTED_13, "13.0"),
        (100, CUBIN_13, LISTED_12.replace("02020100", "04020400") + "09090909", "12.0"),
    ],
)
def test_the_toolkit_of_a_cubin_is_read_from_its_entry(
    packed: int, arch: int, version: tuple[int, int], listed: str, driver: str
) -> None:
    assert targets(fat(entry(SASS, arch, packed, version, listed))) == [f"sm_{arch}:{driver}"]


@pytest.mark.parametrize("arch", [90, 100, 120])
@pytest.mark.nvcc
def test_nvcc_writes_entries_that_tell_its_major(tmp_path: Path, arch: int) -> None:
    said = spawn.run("nvcc", "--version").stdout
    major = int(re.findall(r"release (\d+)\.", said)[0])
    (tmp_path / "k.cu").write_text("__global__ void k(float* a) { a[threadIdx.x] += 1; }\n")
    spawn.run("nvcc", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-fatbin", "k.cu", "-o", "k.fatbin", cwd=tmp_path)
    content = (tmp_path / "k.fatbin").read_bytes()
    assert targets(content) == [f"sm_{arch}:{major}.0"]
    version = re.findall(r"release \d+\.\d+, V([\d.]+)", said)[0]
    assert compilers(content) == ([f"sm_{arch}:nvcc:{version}"] if major >= 13 else [])


def compilers(content: bytes) -> list[str]:
    return [str(code) for code in fatbin.compiled([content])]


def test_the_compiler_of_machine_code_is_what_its_note_says_or_unknown() -> None:
    noted, older = elves.cubin("13.0.88"), elves.cubin("13.2.51")
    body = fat(
        entry(SASS, 103, PLAIN, payload=noted),
        entry(SASS, 103, PLAIN, payload=noted),
        entry(SASS, 90, PLAIN | ARCHITECTURE, payload=older),
        entry(SASS, 80, PLAIN),
        entry(PTX, 80, PLAIN, payload=noted),
    )
    assert compilers(body) == ["sm_103:nvcc:13.0.88", "sm_90a:nvcc:13.2.51"]
    for unknown in (
        entry(SASS, 90, LZ4, payload=noted),  # fails if the note is looked for in packed bytes
        entry(SASS, 90, ZSTD, payload=noted),
        entry(SASS, 90, PLAIN, payload=noted.replace(b"tkinfo", b"cuinfo")),
        entry(SASS, 90, PLAIN, payload=noted.replace(b"release", b"version")),
        entry(SASS, 90, PLAIN, payload=noted[:100]),
    ):
        assert compilers(fat(unknown)) == [] and targets(fat(unknown)) == ["sm_90:12.0"]


def test_the_linked_runtime_says_the_toolkit_of_what_does_not() -> None:
    body = fat(entry(SASS, 80, ZSTD, (1, 9)))
    assert targets(body, cuda_major=13) == ["sm_80:13.0"] and targets(body) == ["sm_80:12.0"]


def test_zeros_and_entries_without_end_are_passed_over_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets(bytes(64 << 20) + fat(entry(SASS, 80, PLAIN))) == ["sm_80:12.0"]
    monkeypatch.setattr(fatbin, "_MOST_IMAGES", 3)
    with pytest.raises(fatbin.FatbinError, match="more than 3 entries"):
        targets(fat(*[entry(8, 80, PLAIN)] * 4))


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
        (fat(struct.pack("<HHI", 2, 0x101, 0) + entry(SASS, 80, PLAIN)[8:]), "is longer than its fat binary"),
        (b"\x50\xed\x55\xba", "a header lies at"),
    ],
)
def test_damaged_bytes_are_refused(damaged: bytes, why: str) -> None:
    with pytest.raises(fatbin.FatbinError, match=why):
        targets(damaged)
