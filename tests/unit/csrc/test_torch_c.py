"""``torch_functions.h`` and ``torch_names.h`` against the installed torch: every type, version and name."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from precast._builder import flags, headers
from precast.core.torch_abi import ANY_TORCH, STABLE_FLOOR
from precast.core.version import Release
from tests.kit import spawn
from tools.shared import torch_symbols

CSRC = Path(__file__).resolve().parents[3] / "csrc"
HOST = CSRC / "host"
LIST = HOST / "torch_functions.h"
TYPES = ("AOTITorchError", "AtenTensorHandle", "StableListHandle", "TorchLibraryHandle", "StableIValue")


def declared(text: str) -> dict[str, tuple[Release, bool]]:
    """Each function of the list: the first torch that has it, and whether it is optional."""
    found = re.findall(r"^PRECAST_(OPTIONAL_)?SINCE\((\d+), (\d+), [\w *]+, (\w+),", text, re.MULTILINE)
    return {name: (Release(int(major), int(minor)), bool(optional)) for optional, major, minor, name in found}


FUNCTIONS = declared(LIST.read_text())
# Names of libraries that a CPU build of torch does not have.
NOT_HERE = {"libtorch_cuda.so"}

pytestmark = [pytest.mark.compiler, pytest.mark.torch]


def installed() -> tuple[Path, Release]:
    """The include folder of the installed torch, and its minor by these headers; 0.0 without torch or headers."""
    spec = importlib.util.find_spec("torch")
    places = () if spec is None else (spec.submodule_search_locations or ())
    include = Path(next(iter(places), "no torch")) / "include"
    return include, headers._release_of(include) or Release(0, 0)


INCLUDE, RELEASE = installed()


def compiled(command: list[str], source: str) -> subprocess.CompletedProcess[str]:
    return spawn.run(*command, stdin=source, env=spawn.environ(LC_ALL="C"), status=None)  # its words are compared


def assertions(folder: Path, functions: Iterable[str], floor: Release) -> tuple[int, str]:
    """The exit status and the words of a compiler that compares the table in ``folder`` with torch's headers."""
    source = """
        #include <torch/csrc/stable/c/shim.h>
        #include "torch_table.h"
        #include <type_traits>
        template <class Ours, class Theirs>
        constexpr bool same = std::is_same_v<Ours, Theirs>;
    """
    source += "".join(f'static_assert(same<precast::{name}, ::{name}>, "{name}");\n' for name in TYPES)
    source += "".join(
        f'static_assert(same<decltype(precast::TorchTable::{name}), decltype(&::{name})>, "{name}");\n'
        for name in functions
    )
    command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-", flags.torch_target_version(floor)]
    done = compiled([*command, f"-I{folder}", "-isystem", str(INCLUDE)], source)
    return done.returncode, done.stderr


def changed(folder: Path, was: str, new: str) -> Path:
    """A copy of the headers with one text replaced in one of them."""
    texts = {name: (HOST / name).read_text() for name in ("torch_functions.h", "torch_table.h", "torch_c.h")}
    assert any(was in text for text in texts.values())
    for name, text in texts.items():
        (folder / name).write_text(text.replace(was, new))
    return folder


if RELEASE >= STABLE_FLOOR:  # an older torch has no such headers

    def test_every_declaration_is_torchs() -> None:
        """Those up to the floor as torch's headers show them to a build for the floor: they are that old."""
        later = {name: since for name, (since, optional) in FUNCTIONS.items() if optional}
        status, said = assertions(HOST, FUNCTIONS.keys() - later.keys(), STABLE_FLOOR)
        assert status == 0, said
        for name, since in later.items():
            if since <= RELEASE:
                status, said = assertions(HOST, [name], since)
                assert status == 0, said
        assert len(FUNCTIONS) == len(re.findall("SINCE[(]", LIST.read_text())) == 44 and len(later) == 1

    @pytest.mark.parametrize(
        ("was", "wrong", "named"),
        [
            ("int64_t* numel", "int32_t* numel", "aoti_torch_get_numel"),
            ("AOTITorchError, torch_get_num_threads", "void, torch_get_num_threads", "torch_get_num_threads"),
            ("uint64_t abi_version", "uint32_t abi_version", "torch_library_impl"),
            ("(int64_t begin, int64_t end, void* context)", "(int64_t begin, int64_t end)", "torch_parallel_for"),
            ("StableIValue = uint64_t", "StableIValue = int64_t", "StableIValue"),
            ("size_t* size", "size_t* size, int more", "torch_list_size"),
        ],
    )
    def test_another_declaration_is_refused(was: str, wrong: str, named: str, tmp_path: Path) -> None:
        known = [name for name, (_, optional) in FUNCTIONS.items() if not optional]
        status, said = assertions(changed(tmp_path, was, wrong), known, STABLE_FLOOR)
        assert status != 0 and f"static assertion failed: {named}\n" in said


def test_a_function_newer_than_the_floor_does_not_compile(tmp_path: Path) -> None:
    """By the version it claims, and by torch's headers if it claims an older one."""
    before = "// ---- Optional ----"
    newer = "PRECAST_SINCE(2, 11, int32_t, torch_dtype_float8_e8m0fnu, ())\n" + before
    changed(tmp_path, before, newer)
    done = compiled(["g++", "-std=c++17", "-fsyntax-only", str(tmp_path / "torch_c.h")], "")
    assert done.returncode != 0 and "newer than the oldest torch that is supported" in done.stderr
    if Release(2, 11) <= RELEASE:
        changed(tmp_path, before, newer.replace("2, 11", "2, 10"))
        status, said = assertions(tmp_path, ["torch_dtype_float8_e8m0fnu"], STABLE_FLOOR)
        assert status != 0 and "'::torch_dtype_float8_e8m0fnu' has not been declared" in said


def test_the_floor_of_the_header_is_the_floor_of_the_loader() -> None:
    header = HOST / "torch_c.h"
    said = dict(re.findall(r"#define PRECAST_TORCH_FLOOR_(MAJOR|MINOR) (\d+)", header.read_text()))
    assert Release(int(said["MAJOR"]), int(said["MINOR"])) == STABLE_FLOOR
    stated = (
        f"static_assert(precast::kTorchAbiVersion == {flags.torch_target_version(STABLE_FLOOR).partition('=')[2]});"
    )
    stated += f"static_assert(precast::kTorchTableVersion == {ANY_TORCH.table});"
    source = f'#include "{header}"\n{stated}\n'
    done = compiled(["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], source)
    assert done.returncode == 0, done.stderr


def test_torch_exports_every_name() -> None:
    """Fails if torch drops or changes what is used without its headers: a C function, or the types of a C++ one."""
    lib = INCLUDE.parent / "lib"
    exported = {path.name: torch_symbols.read(path).defined for path in lib.glob("lib*.so")}
    wanted = {name for name, (since, _) in FUNCTIONS.items() if since <= RELEASE}
    assert wanted <= exported["libtorch_cpu.so"]
    text = re.sub(r'"\s*"', "", (HOST / "torch_names.h").read_text())
    names = re.findall(r'TorchName k\w+ =\s*\{\s*"([\w.]+)",\s*"(\w+)"\}', text)
    assert len(names) == text.count("constexpr TorchName ") > 10
    missing = [name for library, name in names if library not in NOT_HERE and name not in exported[library]]
    # What only newer versions have: std::optional in the name.
    assert [name for name in missing if RELEASE >= STABLE_FLOOR] == []


def test_names_of_torch_are_in_one_place() -> None:
    found = {
        path.name
        for path in CSRC.rglob("*")
        if path.suffix in {".h", ".cpp"} and "torch_stable" not in path.parts
        if re.search(r'"_Z\w+"|"lib(torch|c10)\w*\.so"|"THP', path.read_text())
    }
    assert found <= {"torch_names.h", "attach.cpp", "glibc_compat.cpp"}


if sys.version_info >= (3, 11):  # as torch-abi-audit asks for

    def test_torch_abi_audit_knows_the_same_versions() -> None:
        """Its table comes from the history of torch's headers, and begins with the stable ABI."""
        from torch_abi_audit import BASELINE_VERSION, minimum_version

        for name, (since, _) in FUNCTIONS.items():
            version, _, unknown = minimum_version([name])
            assert not unknown and version is not None, name
            if version == BASELINE_VERSION:
                assert since < STABLE_FLOOR, name
            else:
                assert Release(*version[:2]) == since, name


def test_only_the_adapter_includes_torch() -> None:
    includes = {
        path.name
        for path in CSRC.rglob("*")
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"} and "torch_stable" not in path.parts
        if re.search(r"#include <(torch|ATen|c10)/", path.read_text())
    }
    assert includes == {"torch_adapter.cpp"}
