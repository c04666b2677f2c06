"""The host library: what is compiled again and what is not, what an error says, what the binary does not hold."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from precast import __version__
from precast._abi.settings import Settings
from precast._builder import catalogue, elf, flags, host, sources, toolchain
from precast._builder.cache import Artifact, Cache
from precast._builder.catalogue import Family
from precast.errors import BuildFailed, KernelError
from tests.kit import spawn

pytestmark = pytest.mark.compiler

TINY = Family("tiny", None, ("tiny/host.cpp",), ("tiny/cpu.cpp",), (), ("cpu",))
OTHER = Family("other", None, ("other/host.cpp",), ("tiny/cpu.cpp",), (), ("cpu",))
API = """
#include "shared.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int precast_attach() { return 0; }
EXPORT const char* precast_build_id() { return PRECAST_BUILD_ID; }
EXPORT const char* precast_families() { return __FILE__; }
EXPORT int precast_register() { return SHARED; }
extern "C" int not_exported() { return 1; }
"""
FILES = {
    "host/api.cpp": API,
    "host/shared.h": "#define SHARED 1\n",
    "tiny/host.cpp": '#include "../host/shared.h"\nint tiny() { return SHARED; }\n',
    "tiny/cpu.cpp": "#define N2(a) tiny_##a\n#define N(a) N2(a)\nint N(PRECAST_CPU_LEVEL)() { return 2; }\n",
    "other/host.cpp": "int other() { return 3; }\n",
    **{source: "" for source in catalogue.COMMON_HOST if source != "host/api.cpp"},
}
LEVELS = [level.name for level in flags.cpu_levels(platform.machine())]


@pytest.fixture
def csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources small enough to compile in no time, in a folder whose name wants quoting."""
    root = tmp_path / "a checkout: $HOME" / "csrc"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(sources, "csrc_dir", lambda: root)
    return root


@pytest.fixture
def build(tmp_path: Path, csrc: Path) -> Callable[..., Artifact]:
    ninja, _ = toolchain.find_ninja()
    assert ninja is not None

    def build(
        *families: Family,
        debug: bool = False,
        cache: Path = tmp_path / "cache",
        levels: tuple[flags.CpuLevel, ...] | None = None,
        machine: str = platform.machine(),
    ) -> Artifact:
        chosen = families or (TINY,)
        compiler, looked_at = toolchain.find_compiler(Settings(), machine)
        assert compiler is not None, looked_at
        return host.build_host_library(
            chosen, compiler, cache=Cache(cache), debug=debug, jobs=2, ninja=ninja, levels=levels, machine=machine
        )

    return build


def compiled(made: Artifact) -> set[str]:
    """The objects that a build compiled, from its log."""
    return set(re.findall(r"-o (\S+)\.o$", (made.path.parent / "build.log").read_text(), re.MULTILINE))


def test_a_second_build_is_the_cache(build: Callable[..., Artifact]) -> None:
    first, second = build(), build()
    assert (first.cached, second.cached) == (False, True) and first.path == second.path
    levels = {f"tiny.cpu.{level}" for level in LEVELS}
    assert compiled(first) == {
        name.removesuffix(".cpp").replace("/", ".") for name in catalogue.COMMON_HOST
    } | levels | {"tiny.host"}


def test_an_edit_compiles_what_it_reaches_and_no_more(build: Callable[..., Artifact], csrc: Path) -> None:
    build()
    (csrc / "tiny/cpu.cpp").write_text(FILES["tiny/cpu.cpp"] + "// edited\n")
    assert compiled(build()) == {"host.api", *(f"tiny.cpu.{level}" for level in LEVELS)}, "api.cpp holds the digest"
    (csrc / "host/shared.h").write_text("#define SHARED 2\n")
    assert compiled(build()) == {"host.api", "tiny.host"}


def test_a_touch_or_an_undone_edit_compiles_nothing(build: Callable[..., Artifact], csrc: Path) -> None:
    first = build()
    os.utime(csrc / "tiny/host.cpp", (0, 0))
    assert build().cached
    (csrc / "tiny/host.cpp").write_text("int tiny() { return 4; }\n")
    assert not build().cached
    (csrc / "tiny/host.cpp").write_text(FILES["tiny/host.cpp"])
    assert build().path == first.path and build().cached


def test_families_share_objects(build: Callable[..., Artifact]) -> None:
    build(TINY)
    assert compiled(build(OTHER)) == {"host.api", "other.host"}
    both = build(TINY, OTHER)
    assert both.path.name == "host.so" and compiled(both) == {"host.api"}


def test_one_level_alone(build: Callable[..., Artifact]) -> None:
    best = flags.cpu_levels(platform.machine())[-1]
    alone = build(levels=(best,))
    names = {name for name in compiled(alone) if name.startswith("tiny.cpu")}
    assert names == {f"tiny.cpu.{best.name}"} and alone.path != build().path


@pytest.mark.qemu
def test_each_machine_has_objects_of_its_own(build: Callable[..., Artifact]) -> None:
    here, there = build(), build(machine="aarch64")
    assert not compiled(here) - compiled(there) - {f"tiny.cpu.{level}" for level in LEVELS}
    assert elf.read_shared_object(there.path.read_bytes()).machine == "aarch64"
    assert here.key != there.key and build(machine="aarch64").cached


def test_a_library_for_another_machine_is_not_published(csrc: Path, tmp_path: Path) -> None:
    """Such as one by a compiler that was named by hand."""
    compiler, _ = toolchain.find_compiler(Settings())
    ninja, _ = toolchain.find_ninja()
    assert compiler is not None and ninja is not None
    other = next(machine for machine in flags.CPU_LEVELS if machine != platform.machine())
    with pytest.raises(BuildFailed, match=f"needed  a library for {other}"):
        host.build_host_library(
            [TINY],
            compiler,
            cache=Cache(tmp_path),
            debug=False,
            jobs=2,
            ninja=ninja,
            levels=(flags.CpuLevel("plain", (), ()),),
            machine=other,
        )


def test_the_same_bytes_come_from_anywhere(build: Callable[..., Artifact], tmp_path: Path) -> None:
    assert build().sha256 == build(cache=tmp_path / "another place").sha256


def test_the_binary_names_no_folder(build: Callable[..., Artifact], tmp_path: Path) -> None:
    data = build().path.read_bytes()
    assert str(tmp_path).encode() not in data and b"a checkout" not in data
    assert b"csrc/host/api.cpp" in data, "__FILE__ is a relative name"


def test_debug_builds_are_another_build_with_symbols(build: Callable[..., Artifact]) -> None:
    release, debug = build(), build(debug=True)
    assert release.key != debug.key
    assert b".debug_info" in debug.path.read_bytes() and b".debug_info" not in release.path.read_bytes()


def test_a_debugger_finds_the_sources_where_they_lie(
    build: Callable[..., Artifact], csrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = build(debug=True)
    assert f"{csrc}/tiny/host.cpp".encode() in here.path.read_bytes()
    elsewhere = tmp_path / "moved"
    shutil.copytree(csrc, elsewhere)
    monkeypatch.setattr(sources, "csrc_dir", lambda: elsewhere)
    assert build(debug=True).key != here.key, "another place is another debug build"


def test_editors_are_told_every_compile(csrc: Path, tmp_path: Path) -> None:
    compiler, _ = toolchain.find_compiler(Settings())
    assert compiler is not None
    plan = host.make_plan([TINY], compiler, debug=False, levels=flags.cpu_levels("x86_64"))
    commands = host.compile_commands(plan)
    assert {command["file"] for command in commands} == {str(csrc / unit.source) for unit, _ in plan.units}
    for command in commands:
        arguments = command["arguments"]
        assert isinstance(arguments, list) and f"-I{csrc}" in arguments and "-std=c++17" in arguments


def test_only_the_interface_is_exported_and_only_the_runtime_is_needed(build: Callable[..., Artifact]) -> None:
    info = elf.read_shared_object(build().path.read_bytes())
    assert info.exported == {"precast_attach", "precast_build_id", "precast_families", "precast_register"}
    assert set(info.needed) <= flags.RUNTIME and info.soname == "precast-tiny.so"


def test_a_library_that_asks_for_more_than_the_runtime_is_not_linked(
    build: Callable[..., Artifact], csrc: Path
) -> None:
    calling = 'extern "C" int aoti_torch_dtype_int8();\nint tiny() { return aoti_torch_dtype_int8(); }\n'
    (csrc / "tiny/host.cpp").write_text(calling)
    with pytest.raises(BuildFailed, match="undefined reference to `aoti_torch_dtype_int8'"):
        build()


@pytest.mark.parametrize(
    ("source", "options", "torch", "said"),
    [
        ("", (), (), "exports without precast_attach, precast_build_id"),
        ("", (), flags.TORCH, "NEEDED without libtorch_cpu.so, libc10.so; exports without precast_torch_table"),
        ("int named;", ("-fvisibility=default",), (), "foreign exports named"),
        ("", ("-Wl,--no-as-needed", "-lresolv"), (), "NEEDED with libresolv.so.2"),
    ],
)
def test_what_a_linked_file_must_and_must_not_have(
    tmp_path: Path, source: str, options: tuple[str, ...], torch: tuple[str, ...], said: str
) -> None:
    path = spawn.library(tmp_path / "made.so", source, *options)
    with pytest.raises(BuildFailed, match="came out with wrong dependencies or exports") as caught:
        host.verify_library(path.read_bytes(), platform.machine(), torch=torch)
    assert said in str(caught.value)


def test_the_first_error_is_told_with_its_command_and_log(build: Callable[..., Artifact], csrc: Path) -> None:
    (csrc / "tiny/host.cpp").write_text("int tiny() { return unknown; }\n")
    with pytest.raises(BuildFailed) as caught:
        build()
    asked, found, needed, env, fix = str(caught.value).splitlines()
    assert env.startswith(f"  env     precast {__version__}, g++ ") and f", Python {platform.python_version()}, " in env
    assert asked == "tiny: the compiler failed"
    assert "tiny/host.cpp:1:" in found and "unknown" in found
    assert "-std=c++17" in needed and "tiny.host.o" in needed
    assert "unknown" in Path(fix.partition(": ")[2]).read_text()
    (csrc / "tiny/host.cpp").write_text(FILES["tiny/host.cpp"])
    assert not build().cached, "a failure is not kept"


def test_a_damaged_object_is_compiled_again(build: Callable[..., Artifact], csrc: Path, tmp_path: Path) -> None:
    build()
    for entry in (tmp_path / "cache/v1/objects").iterdir():
        for path in entry.glob("tiny.host.o"):
            path.write_bytes(b"cut short")
    assert compiled(build(TINY, OTHER)) == {"host.api", "other.host", "tiny.host"}


def test_no_search_path_comes_from_a_variable(
    build: Callable[..., Artifact], csrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header would be found, and no key would know of it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "stray.h").write_text("")
    (csrc / "tiny/host.cpp").write_text("#include <stray.h>\n")
    monkeypatch.setenv("CPATH", str(tmp_path / "elsewhere"))
    with pytest.raises(BuildFailed, match=r"stray\.h: No such file"):
        build()


def test_the_key_holds_the_compiler_and_no_path(csrc: Path, tmp_path: Path) -> None:
    compiler, _ = toolchain.find_compiler(Settings())
    assert compiler is not None
    plan = host.make_plan([TINY], compiler, debug=False, levels=flags.cpu_levels("x86_64"))
    text = str(plan.key.inputs)
    assert compiler.version in text and str(tmp_path) not in text and "x86_64" in text
    assert re.search(r"0\.1\.0 [0-9a-f]{16}", str(plan.key.inputs["build_id"]))


def test_a_source_below_a_path_with_a_line_break_is_refused_with_a_way_out() -> None:
    with pytest.raises(KernelError, match="has a line break") as refused:
        host.edge("a.o", ["/a\nb/a.cpp"], ["g++"])
    assert "move it" in str(refused.value) and "PRECAST_CACHE_DIR" not in str(refused.value)
