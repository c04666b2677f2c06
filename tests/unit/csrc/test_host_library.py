"""What the host sources become: an interface of C functions, nothing at load, and nothing newer than manylinux_2_28."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from precast._builder import catalogue, elf, flags, host
from tests.kit import product, spawn

pytestmark = pytest.mark.compiler

CSRC = Path(__file__).parents[3] / "csrc"
INTERFACE = {
    "precast_attach",
    "precast_register_proof",
    "precast_build_id",
    "precast_families",
    "precast_entries",
    "precast_register",
    "precast_set_image",
    "precast_refuse",
    "precast_prepare",
    "precast_kernel_attribute",
    "precast_ask_rows",
    "precast_set_cpu_level",
    "precast_operator",
    "precast_thread_keys",
    "precast_direct",
}
SHIPPED = {*catalogue.COMMON_HOST, *(source for family in catalogue.FAMILIES for source in family.host)}


def compiled(source: Path, output: Path, *options: str) -> Path:
    command = [
        "g++",
        *flags.host_options("g++", debug=False),
        *options,
        f"-I{CSRC}",
        "-Werror",
        "-c",
        str(source),
        "-o",
    ]
    spawn.run(*command, output)
    return output


@pytest.fixture
def objects() -> dict[str, Path]:
    """Every host source but the CPU kernels, as the product compiles them."""
    names = [unit.name for unit, _ in product.plan().units if unit.source in SHIPPED]
    return {name: product.built()[1][name] for name in names}


@pytest.fixture
def library(objects: dict[str, Path], tmp_path: Path) -> Path:
    """All of them linked as the product is: the version script keeps the bounds of the families' section inside."""
    script, output = tmp_path / "exports.map", tmp_path / "all.so"
    script.write_text(host._EXPORTS)
    script_option = f"-Wl,--version-script={script}"
    spawn.run("g++", "-shared", *objects.values(), script_option, "-o", output)
    return output


@pytest.mark.parametrize("how", ["read", pytest.param("optimized", marks=pytest.mark.long)])
def test_no_source_makes_the_compiler_warn(how: str) -> None:
    """With the options of each object; most warnings come as a source is read, and the others as it is optimized."""
    stop = ("-fsyntax-only",) if how == "read" else ("-o", os.devnull)
    for unit, _ in product.plan().units:
        # fails if the compiler says anything of the unit
        spawn.run("g++", *unit.options, f"-I{CSRC}", "-Werror", "-c", CSRC / unit.source, *stop)


def symbols(path: Path, *options: str) -> str:
    return spawn.run("nm", *options, path).stdout


def test_only_the_c_interface_is_exported(library: Path) -> None:
    defined = re.findall(r" [A-TV-Z] (\w+)", symbols(library, "-D", "--defined-only"))
    assert set(defined) == INTERFACE
    weak = re.findall(r" [VWu] (\w+)", symbols(library, "-D", "--defined-only"))
    assert not weak, "an inline function of the standard library is exported: two libraries would share one copy"


def test_nothing_of_ours_runs_at_load(objects: dict[str, Path]) -> None:
    for name, path in objects.items():
        assert ".init_array" not in spawn.run("readelf", "-SW", path).stdout, name


def test_symbol_versions(library: Path) -> None:
    info = elf.read_shared_object(library.read_bytes())
    assert info.glibc is not None
    assert info.glibc <= (flags.GLIBC_CEILING.major, flags.GLIBC_CEILING.minor)
    assert info.glibcxx <= flags.GLIBCXX_CEILING
    assert "dlsym@GLIBC_2.34" not in symbols(library, "-D")


def test_the_stand_ins_keep_newer_symbols_out(tmp_path: Path) -> None:
    """Code that would ask for two symbols newer than the ceiling, with the stand-ins and without them."""
    probe = tmp_path / "probe.cpp"
    probe.write_text(
        "#include <memory>\n#include <vector>\n"
        "int use(std::shared_ptr<int> a, std::vector<int>& v, int n) {\n"
        "  auto b = a; v.reserve(n); v.push_back(*b); std::vector<long> w(v.begin(), v.end());\n"
        "  return static_cast<int>(w.size());\n}\n"
    )
    probe_object = compiled(probe, tmp_path / "probe.o")
    stand_ins = compiled(CSRC / "host/glibc_compat.cpp", tmp_path / "stand_ins.o")
    newer = {"__libc_single_threaded", "_ZSt28__throw_bad_array_new_lengthv"}
    library = tmp_path / "probe.so"
    spawn.run("g++", "-shared", probe_object, stand_ins, "-o", library)
    assert not any(name in symbols(library, "-D") for name in newer)
