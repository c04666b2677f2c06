"""Which functions of torch's stable ABI came when, and what a library may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._abi.torch_abi import Exact, Stable
from precast._abi.version import Release
from tools.binaries import Undefined
from tools.guards.symbols import _classic, _of_the_system, _stable, declared_shims, exported_by

HEADER = b"""
#ifdef __cplusplus
extern "C" {
#endif
AOTI_TORCH_EXPORT int32_t aoti_torch_always();
// AOTI_TORCH_EXPORT int32_t aoti_torch_in_a_comment();
#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_11_0
AOTI_TORCH_EXPORT AOTITorchError
torch_over_two_lines(size_t size, StableListHandle* ret);
#ifdef USE_CUDA
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_of_cuda(int32_t device);
#endif // USE_CUDA
#endif
AOTI_TORCH_EXPORT int32_t aoti_torch_after();
"""
SHIMS = declared_shims({"stable/c/shim.h": HEADER, "stable/ops.h": b"AOTI_TORCH_EXPORT int torch_not_a_shim();"})


def test_each_function_has_the_torch_it_came_with() -> None:
    old, new = Release(0, 0), Release(2, 11)
    wanted = {
        "aoti_torch_always": old,
        "torch_over_two_lines": new,
        "aoti_torch_of_cuda": None,
        "aoti_torch_after": old,
    }
    assert {**wanted, "aoti_torch_after": old} == SHIMS


@pytest.mark.parametrize(
    ("name", "weak", "refused"),
    [
        ("aoti_torch_always", False, None),
        ("torch_over_two_lines", False, "since torch 2.11"),
        ("torch_over_two_lines", True, None),
        ("aoti_torch_of_cuda", False, "of its CUDA part"),
        ("cudaMalloc", False, "cudaMalloc"),
        ("_ZN2at4fullEv", True, "_ZN2at4fullEv"),
    ],
)
def test_a_stable_library_takes_what_its_floor_has(name: str, weak: bool, refused: str | None) -> None:
    found = list(_stable("host/x.so", Stable(Release(2, 10)), [Undefined(name, None, weak)], SHIMS))
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
    assert "torch 2.9" in nothing.wanted and nothing.found == "none"
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
