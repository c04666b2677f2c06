"""What a library and an adapter may ask for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from precast.core.manifest import HostKind
from precast.core.torch_abi import ANY_TORCH, Exact, TorchAbi
from precast.core.version import Release
from tools.guards.symbols import _adapter, _of_the_system, check_symbols, exported_by
from tools.shared.binaries import Undefined


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


@pytest.mark.parametrize("abi", [ANY_TORCH, Exact(Release(2, 9), True)])
def test_a_library_asks_for_the_runtime_alone(abi: TorchAbi) -> None:
    """Even of what every torch has: the table gives it that. Its kind makes it one, whatever ABI it claims."""
    asked = (Undefined("memcpy", "GLIBC_2.14", False), Undefined("aoti_torch_get_dim", None, False))
    facts = SimpleNamespace(undefined=asked)
    library = SimpleNamespace(path="host/x.so", abi=abi, kind=HostKind.LIBRARY)
    audited = SimpleNamespace(info=SimpleNamespace(host=[library]), libraries={"host/x.so": facts})
    (violation,) = check_symbols(audited)  # type: ignore[arg-type]
    assert (violation.candidate, violation.found) == ("host/x.so", "aoti_torch_get_dim")
    assert violation.needed == "symbols of the C and C++ runtime alone"


def test_an_adapter_is_held_against_its_own_torch(tmp_path: Path) -> None:
    abi = Exact(Release(2, 9), True)
    asked = [Undefined("_ZN2at4fullEv", None, False), Undefined("_ZN3c105errorEv", None, False)]
    ((nothing),) = _adapter("host/x.so", abi, asked, tmp_path)
    assert "torch 2.9 exports" in nothing.needed and "torch-2.9-cxx1.txt" in nothing.found
    exported_by.cache_clear()
    (tmp_path / "torch-2.9-cxx1.txt").write_text("# of torch 2.9.1\n_ZN2at4fullEv\n")
    assert [v.found for v in _adapter("host/x.so", abi, asked, tmp_path)] == ["_ZN3c105errorEv"]


@pytest.mark.torch
def test_the_symbols_of_an_installed_torch_are_read(tmp_path: Path) -> None:
    import torch

    abi = Exact(Release(2, 9), True)
    (tmp_path / str(abi)).symlink_to(Path(torch.__file__).parent / "lib", target_is_directory=True)
    asked = [Undefined("aoti_torch_device_type_cpu", None, False), Undefined("no_such_symbol", None, False)]
    assert [v.found for v in _adapter("host/x.so", abi, asked, tmp_path)] == ["no_such_symbol"]
