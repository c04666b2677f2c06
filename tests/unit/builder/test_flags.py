"""Command lines are pinned as text: a change of a flag is a change of every binary, and must be seen in review."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._builder import flags, matrix
from precast.core.capability import GpuTarget
from precast.core.torch_abi import Exact
from precast.core.version import Release


def test_the_ceilings_are_those_of_the_matrix(checkout: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    assert (known.glibc, known.glibcxx) == (flags.GLIBC_CEILING, flags.GLIBCXX_CEILING)


def test_host_options_are_pinned() -> None:
    assert " ".join(flags.host_options("g++", debug=False)) == (
        "-std=c++17 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -fno-gnu-unique -Wall -Wextra -O2 -DNDEBUG"
    )
    assert " ".join(flags.host_options("g++", debug=True)) == (
        "-std=c++17 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -fno-gnu-unique -Wall -Wextra "
        "-O0 -g -gno-record-gcc-switches"
    )


def test_clang_is_not_given_what_it_does_not_know() -> None:
    gcc, clang = (set(flags.host_options(kind, debug=False)) for kind in ("g++", "clang++"))
    assert gcc - clang == {"-fno-gnu-unique"} and not clang - gcc


def test_a_compile_names_no_folder_in_its_object() -> None:
    command = flags.host_compile_command(
        "g++",
        ("-O2",),
        source="/home/me/csrc/a/host.cpp",
        output="a.host.o",
        roots={"csrc": "/home/me/csrc", "torch_stable": "/cache/include"},
        includes=("/home/me/csrc",),
        system=("/cache/include",),
        build_dir="/tmp/build",
        seed="a.host",
    )
    assert " ".join(command) == (
        "g++ -O2 -frandom-seed=a.host -ffile-prefix-map=/home/me/csrc=csrc "
        "-ffile-prefix-map=/cache/include=torch_stable -ffile-prefix-map=/tmp/build=. "
        "-I/home/me/csrc -isystem /cache/include -c /home/me/csrc/a/host.cpp -o a.host.o"
    )


def test_the_link_needs_torch_by_name_only() -> None:
    command = flags.host_link_command(
        "g++",
        flags.link_options(debug=False),
        objects=("a.o", "b.o"),
        output="x.so",
        soname="precast-x.so",
        exports="exports.map",
        stubs=("./libtorch_cpu.so",),
    )
    assert " ".join(command) == (
        "g++ -shared -fPIC -Wl,-z,relro,-z,now -Wl,-z,noexecstack -Wl,--build-id=sha1 -Wl,--exclude-libs,ALL "
        "-Wl,--strip-all -Wl,-soname,precast-x.so -Wl,--version-script=exports.map -o x.so a.o b.o "
        "-Wl,--no-as-needed ./libtorch_cpu.so -Wl,--as-needed -ldl"
    )
    assert "-Wl,--strip-all" not in flags.link_options(debug=True)


def test_the_torch_target_is_the_floor() -> None:
    assert flags.torch_target_version(Release(2, 10)) == "-DTORCH_TARGET_VERSION=0x020a000000000000"


def test_an_adapter_knows_one_torch_from_another() -> None:
    old, new = (Exact(Release(2, 6), cxx11) for cxx11 in (False, True))
    assert flags.adapter_options(old) == ("-DPRECAST_TORCH=206", "-D_GLIBCXX_USE_CXX11_ABI=0", "-fopenmp")
    assert flags.adapter_options(new)[1] == "-D_GLIBCXX_USE_CXX11_ABI=1"
    assert flags.adapter_options(Exact(Release(2, 13), cxx11=True))[0] == "-std=c++20"


def test_the_link_brings_no_openmp_runtime_along() -> None:
    assert not [option for option in flags.link_options(debug=False) if "openmp" in option or "gomp" in option]


@pytest.mark.parametrize(
    ("target", "debug", "wanted"),
    [
        ("sm_90", False, "--gpu-architecture=sm_90 --std=c++17"),
        ("compute_90", False, "--gpu-architecture=compute_90 --std=c++17"),
        ("sm_90a", True, "--gpu-architecture=sm_90a --std=c++17 -G"),
    ],
)
def test_nvrtc_options(target: str, debug: bool, wanted: str) -> None:
    assert " ".join(flags.nvrtc_options(GpuTarget.parse(target), debug=debug)) == wanted


def test_cpu_levels_are_named_in_the_unit() -> None:
    avx2 = flags.cpu_levels("x86_64")[1]
    assert flags.cpu_options(avx2, debug=False) == (
        "-DPRECAST_CPU_LEVEL=avx2",
        "-fno-exceptions",
        "-fno-asynchronous-unwind-tables",
        "-mavx2",
        "-mfma",
        "-mf16c",
    )
    sve256 = flags.cpu_levels("aarch64")[2]
    assert " ".join(flags.cpu_options(sve256, debug=False)) == (
        "-DPRECAST_CPU_LEVEL=sve256 -fno-exceptions -fno-asynchronous-unwind-tables "
        "-march=armv8.2-a+sve -msve-vector-bits=256"
    )
    assert [level.name for level in flags.cpu_levels("x86_64") if "-Os" in flags.cpu_options(level, debug=False)] == [
        "baseline"
    ]
    assert flags.cpu_options(flags.cpu_levels("x86_64")[0], debug=True) == ("-DPRECAST_CPU_LEVEL=baseline",)
    assert [level.name for level in flags.cpu_levels("aarch64")] == ["neon", "sve128", "sve256", "sve512"]
    with pytest.raises(ValueError, match="riscv64"):
        flags.cpu_levels("riscv64")


@pytest.mark.parametrize(
    ("machine", "features", "level"),
    [
        ("x86_64", "", "baseline"),
        ("x86_64", "avx2 fma", "baseline"),
        ("x86_64", "avx2 fma f16c avx512f", "avx2"),
        ("x86_64", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq sse2", "avx512"),
        ("aarch64", "asimd", "neon"),
        ("aarch64", "asimd sve sve128", "sve128"),
        ("aarch64", "sve256", "sve256"),
        ("aarch64", "sve512", "sve512"),
        ("aarch64", "asimd sve sve1024", "neon"),
    ],
)
def test_best_level(machine: str, features: str, level: str) -> None:
    assert flags.best_level(machine, frozenset(features.split())).name == level


def test_a_level_by_name_must_be_of_this_machine() -> None:
    avx2, sve256 = frozenset(("avx2", "fma", "f16c")), frozenset(("asimd", "sve", "sve256"))
    assert flags.named_level("x86_64", avx2, "baseline").name == "baseline"
    assert flags.named_level("aarch64", sve256, "sve").name == flags.named_level("aarch64", sve256, "sve256").name
    for machine, features, name, here in (
        ("x86_64", avx2, "avx512", "baseline, avx2"),
        ("x86_64", avx2, "sve", "baseline, avx2"),
        ("aarch64", sve256, "sve512", "neon, sve256"),
        ("aarch64", frozenset(), "sve", "neon"),
    ):
        with pytest.raises(ValueError, match=f"CPU level '{name}' was asked for; this machine has {here}$"):
            flags.named_level(machine, features, name)


def test_one_level_alone_is_a_define() -> None:
    levels = flags.cpu_levels("x86_64")
    assert flags.level_defines(levels) == ()
    assert flags.level_defines(levels[1:2]) == ("-DPRECAST_ONLY_CPU_LEVEL=avx2",)


def test_no_option_names_a_path() -> None:
    options = [*flags.host_options("g++", debug=True), *flags.link_options(debug=True)]
    for level in flags.cpu_levels("x86_64"):
        options += flags.cpu_options(level, debug=False)
    assert not [option for option in options if "/" in option]
