"""``torch_c.h`` declares torch's functions as torch does: compared with headers and library of the installed torch."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from precast._abi.torch_abi import STABLE_FLOOR
from precast._abi.version import Release
from precast._builder import flags, headers
from tools.guards.symbols import declared
from tools.shared import torch_symbols

CSRC = Path(__file__).resolve().parents[3] / "csrc"
HEADER = CSRC / "common" / "torch_c.h"
FUNCTIONS = declared(HEADER.read_text())
# Those that have no version of torch in the wheel's audit, because they are in libtorch_cuda.so.
CUDA = {name for name, since in FUNCTIONS.items() if since is None}
TYPES = ("AOTITorchError", "AtenTensorHandle", "StableListHandle", "TorchLibraryHandle", "StableIValue")

pytestmark = [pytest.mark.compiler, pytest.mark.torch]


def installed() -> tuple[Path, Release]:
    """The include folder of the installed torch, and its minor by these headers; 0.0 without torch or headers."""
    spec = importlib.util.find_spec("torch")
    places = () if spec is None else (spec.submodule_search_locations or ())
    include = Path(next(iter(places), "no torch")) / "include"
    return include, headers._release_of(include) or Release(0, 0)


INCLUDE, RELEASE = installed()


def compiled(command: list[str], source: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LC_ALL": "C"}  # its words are compared
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False, env=env)


def assertions(
    ours: str, functions: Mapping[str, Release | None], floor: Release, include: Path = INCLUDE
) -> tuple[int, str]:
    """The exit status and the words of a compiler that compares these functions with torch's headers for that floor.

    Ours become C++ functions in namespace precast, as for a classic torch, so that both declarations can be seen.
    """
    source = f"""
        #define USE_CUDA
        #include <torch/csrc/stable/c/shim.h>
        #define PRECAST_TORCH_CLASSIC
        {ours}
        #include <type_traits>
        template <class Ours, class Theirs>
        constexpr bool same = std::is_same_v<Ours, Theirs>;
    """
    source += "".join(f'static_assert(same<precast::{name}, ::{name}>, "{name}");\n' for name in TYPES)
    source += "".join(
        f'static_assert(same<decltype(&precast::{name}), decltype(&::{name})>, "{name}");\n' for name in functions
    )
    command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-", flags.torch_target_version(floor)]
    done = compiled([*command, "-isystem", str(include)], source.replace("#pragma once", ""))
    return done.returncode, done.stderr


if RELEASE >= STABLE_FLOOR:  # an older torch has no such headers

    def test_every_declaration_is_torchs() -> None:
        """Those up to the floor as torch's headers show them to a build for the floor: they are that old."""
        later = {name: since for name, since in FUNCTIONS.items() if since is not None and since > STABLE_FLOOR}
        known = {name: since for name, since in FUNCTIONS.items() if name not in later}
        status, said = assertions(HEADER.read_text(), known, STABLE_FLOOR)
        assert status == 0, said
        for name, since in later.items():
            if since <= RELEASE:
                status, said = assertions(HEADER.read_text(), {name: since}, since)
                assert status == 0, said
        assert len(FUNCTIONS) == 45 and len(later) == len(CUDA) == 1

    @pytest.mark.parametrize(
        ("was", "wrong", "named"),
        [
            ("int64_t* numel", "int32_t* numel", "aoti_torch_get_numel"),
            ("AOTITorchError torch_get_num_threads", "void torch_get_num_threads", "torch_get_num_threads"),
            ("uint64_t abi_version", "uint32_t abi_version", "torch_library_impl"),
            ("int64_t begin, int64_t end, void* context)", "int64_t begin, int64_t end)", "torch_parallel_for"),
            ("StableIValue = uint64_t", "StableIValue = int64_t", "StableIValue"),
            ("int32_t device, void** stream", "int32_t device, void* stream", "aoti_torch_get_current_cuda_stream"),
            ("size_t* size", "size_t* size, int more", "torch_list_size"),
        ],
    )
    def test_another_declaration_is_refused(was: str, wrong: str, named: str) -> None:
        text = HEADER.read_text()
        assert was in text
        known = {name: since for name, since in FUNCTIONS.items() if since is None or since <= STABLE_FLOOR}
        status, said = assertions(text.replace(was, wrong), known, STABLE_FLOOR)
        assert status != 0 and f"static assertion failed: {named}\n" in said


def test_a_function_newer_than_the_floor_does_not_compile(tmp_path: Path) -> None:
    """By the version it claims, and by torch's headers if it claims an older one."""
    newer = "PRECAST_SINCE(2, 11) int32_t torch_dtype_float8_e8m0fnu();\n}  // namespace precast\n"
    text = HEADER.read_text().replace("}  // namespace precast\n", newer)
    path = tmp_path / "torch_c.h"
    path.write_text(text)
    done = compiled(["g++", "-std=c++17", "-fsyntax-only", str(path)], "")
    assert done.returncode != 0 and "newer than the oldest torch that is supported" in done.stderr
    if Release(2, 11) <= RELEASE:
        lied = text.replace("PRECAST_SINCE(2, 11)", "PRECAST_SINCE(2, 10)")
        status, said = assertions(lied, {"torch_dtype_float8_e8m0fnu": Release(2, 10)}, STABLE_FLOOR)
        assert status != 0 and "'::torch_dtype_float8_e8m0fnu' has not been declared" in said


def test_the_floor_of_the_header_is_the_floor_of_the_loader() -> None:
    said = dict(re.findall(r"#define PRECAST_TORCH_FLOOR_(MAJOR|MINOR) (\d+)", HEADER.read_text()))
    assert Release(int(said["MAJOR"]), int(said["MINOR"])) == STABLE_FLOOR
    stated = (
        f"static_assert(precast::kTorchAbiVersion == {flags.torch_target_version(STABLE_FLOOR).partition('=')[2]});"
    )
    source = f'#include "{HEADER}"\n{stated}\n'
    done = compiled(["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], source)
    assert done.returncode == 0, done.stderr


def test_torch_exports_what_is_declared() -> None:
    exported = torch_symbols.read(INCLUDE.parent / "lib" / "libtorch_cpu.so").defined
    wanted = {name for name, since in FUNCTIONS.items() if since is not None and since <= RELEASE}
    assert wanted <= exported


if sys.version_info >= (3, 11):  # as torch-abi-audit asks for

    def test_torch_abi_audit_knows_the_same_versions() -> None:
        """Its table comes from the history of torch's headers, and begins with the stable ABI."""
        from torch_abi_audit import BASELINE_VERSION, minimum_version

        for name, since in FUNCTIONS.items():
            version, _, unknown = minimum_version([name])
            if since is None:
                continue
            assert not unknown and version is not None, name
            if version == BASELINE_VERSION:
                assert since < STABLE_FLOOR, name
            else:
                assert Release(*version[:2]) == since, name


def test_only_the_adapter_of_classic_torch_includes_torch() -> None:
    includes = {
        path.name
        for path in CSRC.rglob("*")
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"} and "torch_stable" not in path.parts
        if re.search(r"#include <(torch|ATen|c10)/", path.read_text())
    }
    assert includes == {"torch_classic.cpp"}
