"""Which functions of torch's stable ABI came when, and what a library may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._abi.torch_abi import Exact, Stable
from precast._abi.version import Release
from tools.guards.symbols import _classic, _of_the_system, _stable, declared, exported_by
from tools.shared.binaries import Undefined

HEADER = """
#define PRECAST_SINCE(major, minor) extern "C"
PRECAST_SINCE(2, 2) int32_t aoti_torch_old();
// PRECAST_SINCE(2, 2) int32_t aoti_torch_in_a_comment();
PRECAST_SINCE(2, 11)
AOTITorchError torch_over_two_lines(size_t size,
                                    void (*function)(StableIValue*), StableListHandle* ret);
PRECAST_WEAK_SINCE(2, 13) const char* torch_new();
PRECAST_CUDA_SINCE(2, 4) AOTITorchError aoti_torch_of_cuda(int32_t device);
"""
FUNCTIONS = declared(HEADER)


def test_each_function_has_the_torch_it_came_with() -> None:
    assert {
        "aoti_torch_old": Release(2, 2),
        "torch_over_two_lines": Release(2, 11),
        "torch_new": Release(2, 13),
        "aoti_torch_of_cuda": None,
    } == FUNCTIONS


@pytest.mark.parametrize(
    ("name", "weak", "refused"),
    [
        ("aoti_torch_old", False, None),
        ("torch_over_two_lines", False, "since torch 2.11"),
        ("torch_over_two_lines", True, None),
        ("torch_new", True, None),
        ("torch_new", False, "since torch 2.13"),
        ("aoti_torch_of_cuda", False, "of its CUDA part"),
        ("cudaMalloc", False, "cudaMalloc"),
        ("_ZN2at4fullEv", True, "_ZN2at4fullEv"),
    ],
)
def test_a_stable_library_takes_what_its_floor_has(name: str, weak: bool, refused: str | None) -> None:
    found = list(_stable("host/x.so", Stable(Release(2, 10)), [Undefined(name, None, weak)], FUNCTIONS))
    assert [v.where for v in found] == ([] if refused is None else ["host/x.so"])
    assert refused is None or refused in found[0].found


@pytest.mark.parametrize(
    ("symbol", "of_the_system"),
    [
        (Undefined("memcpy", "GLIBC_2.14", False), True),
        (Undefined("_Znwm", "GLIBCXX_3.4", False), True),
        (Undefined("__gmon_start__", None, True), True),
        (Undefined("__gmon_start__", None, False), False),
        (Undefined("cudaMalloc", "libcudart.so.12", False), False),
        (Undefined("GOMP_parallel", "GOMP_4.0", False), False),
        (Undefined("memcpy", None, False), False),
    ],
)
def test_what_the_system_defines_has_a_version(symbol: Undefined, of_the_system: bool) -> None:
    assert _of_the_system(symbol) is of_the_system


def test_a_classic_library_is_held_against_its_own_torch(tmp_path: Path) -> None:
    abi = Exact(Release(2, 9), True)
    asked = [Undefined("_ZN2at4fullEv", None, False), Undefined("_ZN3c105errorEv", None, False)]
    ((nothing),) = _classic("host/x.so", abi, asked, tmp_path)
    assert "torch 2.9 exports" in nothing.wanted and "torch-2.9-cxx1.txt" in nothing.found
    exported_by.cache_clear()
    (tmp_path / "torch-2.9-cxx1.txt").write_text("# of torch 2.9.1\n_ZN2at4fullEv\n")
    assert [v.found for v in _classic("host/x.so", abi, asked, tmp_path)] == ["_ZN3c105errorEv"]


@pytest.mark.torch
def test_the_symbols_of_an_installed_torch_are_read(tmp_path: Path) -> None:
    import torch

    abi = Exact(Release(2, 9), True)
    (tmp_path / str(abi)).symlink_to(Path(torch.__file__).parent / "lib", target_is_directory=True)
    asked = [Undefined("aoti_torch_device_type_cpu", None, False), Undefined("no_such_symbol", None, False)]
    assert [v.found for v in _classic("host/x.so", abi, asked, tmp_path)] == ["no_such_symbol"]
