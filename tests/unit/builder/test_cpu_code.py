"""The processor features of machine code: instruction lengths as objdump has them, and what is chosen at run time."""

from __future__ import annotations

import itertools
import platform
import re
from pathlib import Path

import pytest

from precast._builder import cpu_code, elf, x86
from tests.kit import spawn

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the machine code is that of x86_64"),
]

LOOPS = """
#include <stddef.h>
extern "C" void add(float* a, const float* b, size_t n) { for (size_t i = 0; i < n; i++) a[i] += b[i] * a[i]; }
extern "C" int count(const int* a, size_t n) { int s = 0; for (size_t i = 0; i < n; i++) s += a[i] > 3; return s; }
extern "C" float half(const _Float16* a) { return *a; }
"""
CHOSEN = """
#include <stddef.h>
TARGET static void wide(float* a, size_t n) { for (size_t i = 0; i < n; i++) a[i] += a[i]; }
extern "C" void add(float* a, size_t n) { if (ASK) wide(a, n); else *a = 1; }
"""
AT_LOAD = """
float values[64];
__attribute__((constructor)) TARGET static void start() { for (float& one : values) one += one; }
"""
AVX512 = '-DTARGET=__attribute__((noinline,target("avx512f,prefer-vector-width=512")))'


def use(folder: Path, source: str, *options: str) -> cpu_code.CpuUse:
    data = spawn.library(folder / "code.so", source, "-O3", *options).read_bytes()
    info = elf.read_shared_object(data)
    return cpu_code.read(data, info.machine, info.undefined)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), set()),
        (("-mavx",), {"avx"}),
        (("-mavx2", "-mfma", "-mf16c"), {"avx", "avx2", "fma", "f16c"}),
        (("-mavx512f", "-mprefer-vector-width=512"), {"avx512f"}),
    ],
)
def test_a_library_that_does_not_ask_needs_what_it_was_compiled_for(
    tmp_path: Path, options: tuple[str, ...], wanted: set[str]
) -> None:
    found = use(tmp_path, LOOPS, *options)
    assert wanted <= set(found.required) and (wanted or not found.required) and not found.chosen


def test_code_behind_a_question_is_chosen_and_code_that_runs_at_once_is_needed(tmp_path: Path) -> None:
    asks = use(tmp_path, CHOSEN, AVX512, '-DASK=__builtin_cpu_supports("avx512f")')
    assert "avx512f" in asks.chosen and not asks.required
    never = use(tmp_path, CHOSEN, AVX512, "-DASK=n>9")
    assert "avx512f" in never.required and not never.chosen
    at_load = use(tmp_path, CHOSEN + AT_LOAD, AVX512, '-DASK=__builtin_cpu_supports("avx512f")')
    assert "avx512f" in at_load.required


@pytest.mark.parametrize("options", [("-O2",), ("-O3", "-mavx512f", "-mavx512bw", "-mavx2", "-mfma", "-mbmi2")])
def test_every_instruction_has_the_length_that_objdump_gives(tmp_path: Path, options: tuple[str, ...]) -> None:
    source = (
        LOOPS
        + '#include <regex>\nextern "C" bool found(const char* s) { return std::regex_match(s, std::regex("a+b")); }\n'
    )
    library = spawn.library(tmp_path / "code.so", source, "-O3", *options)
    start, text = elf.read_sections(library.read_bytes(), (".text",))[".text"]
    shown = spawn.run("objdump", "-d", "-j", ".text", "--no-show-raw-insn", library).stdout
    places = [int(place, 16) - start for place in re.findall(r"^\s*([0-9a-f]+):", shown, re.MULTILINE)]
    code = bytes(text)
    assert len(places) > 3000
    assert [at for at, after in itertools.pairwise(places) if at + x86.length(code, at) != after] == []


@pytest.mark.parametrize("code", [b"\xc4", b"\x62\x08\x00\x00\x00\x00", b"\xc4\x00\x00\x00\x00", b"\x0f"])
def test_bytes_that_are_no_instruction_end_the_decoding(code: bytes) -> None:
    with pytest.raises(x86.Undecodable):
        list(x86.features(code))


@pytest.mark.parametrize("group", range(16))
def test_instructions_of_the_group_of_sve_count_from_enough_of_them_on(group: int) -> None:
    """All sixteen encoding groups; ``add z0.s, z1.s, z2.s`` is 0x04a20020, of group 2."""
    assert 0x04A20020 >> 25 & 15 == 2
    for count in (cpu_code._ENOUGH - 1, cpu_code._ENOUGH, cpu_code._ENOUGH + 1):
        words = [0xAA0103E0, *[group << 25 | 0x20] * count, 0xD65F03C0]  # mov x0, x1 before, and ret behind
        text = memoryview(b"".join(word.to_bytes(4, "little") for word in words) + b"\0")
        assert cpu_code._has_sve(text) == (group == 2 and count >= cpu_code._ENOUGH)
