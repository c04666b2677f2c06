"""The facts of the machine these tests run on, against what other programs say of it."""

from __future__ import annotations

import os
import platform
import struct
import sys
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._load import probe as ours
from precast.core import gpus, probe
from tests.kit import spawn


def test_the_facts_that_need_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_probe_torch", lambda: (None, None, "not asked"))
    host = ours.probe_host(Settings(), gpus=False)
    assert (host.system, host.machine) == (platform.system(), platform.machine())
    assert str(host.python) == ".".join(map(str, sys.version_info[:2]))
    assert host.glibc is None or f"glibc {host.glibc}" == os.confstr("CS_GNU_LIBC_VERSION")
    assert (host.torch, host.torch_error, host.gpus, host.builders) == (None, "not asked", (), None)


@pytest.mark.torch
def test_the_facts_of_torch_and_of_the_library_it_brings() -> None:
    code = """
import torch, pathlib, re
import precast
from precast._abi.settings import Settings
from precast._load import probe
host = probe.probe_host(Settings(), gpus=True)
assert str(host.torch.version) == str(torch.__version__), host.torch
assert host.torch.version.git == torch.version.git_version
assert str(host.torch.cuda or "") == ".".join((torch.version.cuda or "").split(".")[:2])
assert host.torch.cxx11 == torch.compiled_with_cxx11_abi()
path = next(line.split(maxsplit=5)[5] for line in open("/proc/self/maps") if "/libstdc++.so.6" in line).strip()
versions = re.findall(rb"GLIBCXX_([0-9.]+)(?=[^0-9.])", pathlib.Path(path).read_bytes())
assert host.glibcxx == max((v.decode() for v in versions), key=lambda v: [int(part) for part in v.split(".")])
assert not torch.cuda.is_initialized()
"""
    spawn.python("-c", code)  # fails if an assertion in it does


def test_without_a_mapped_libstdcxx_its_level_is_unknown() -> None:
    code = "from precast.core import probe; assert probe._glibcxx() is None"
    # -S: nothing that site-packages start by themselves. It fails if the assertion does.
    spawn.python("-S", "-c", code, env=spawn.environ(PYTHONPATH=spawn.search_path()))


def test_another_c_library_has_no_glibc_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr(os, "confstr", refuse)
    assert probe._glibc() is None
    monkeypatch.setattr(os, "confstr", lambda name: "another 1.2")
    assert probe._glibc() is None


def test_gpus_are_asked_for_only_where_there_is_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("NVML was asked")

    monkeypatch.setattr(probe, "_probe_torch", lambda: (None, None, None))
    monkeypatch.setattr(gpus, "driver_version", lambda: None)
    monkeypatch.setattr(gpus, "forecast", forbidden)
    host = ours.probe_host(Settings(), gpus=True)
    assert host.driver is None and host.gpus == ()


class FakeCuda:
    """As much of torch.cuda as is asked; ``init`` changes what is initialised."""

    def __init__(self, *, initialised: bool, available: bool = True) -> None:
        self.initialised, self.available = initialised, available

    def is_initialized(self) -> bool:
        return self.initialised

    def is_available(self) -> bool:
        return self.available

    def init(self) -> None:
        self.initialised = True

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> object:
        return type("Properties", (), {"major": 9, "minor": 0, "name": "from torch", "uuid": "1234"})


def gpu_names(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, forecast: gpus.Forecast, *, certain: bool
) -> tuple[list[str], bool]:
    torch = type("torch", (), {"cuda": cuda})
    monkeypatch.setattr(gpus, "forecast", lambda *_: forecast)
    found = probe._gpus(torch, certain)  # type: ignore[arg-type]
    return [gpu.name for gpu in found], cuda.initialised


def test_torch_is_believed_once_it_is_initialised_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.core.capability import ComputeCapability
    from precast.core.host import Gpu

    sure = gpus.Forecast((Gpu(0, ComputeCapability(9, 0), "from NVML"),), certain=True, note="")
    unsure = gpus.Forecast(sure.gpus, certain=False, note="two kinds")
    cold, warm, broken = (FakeCuda(initialised=v) for v in (False, True, False))
    broken.available = False
    assert gpu_names(monkeypatch, warm, sure, certain=False) == (["from torch"], True)
    assert gpu_names(monkeypatch, cold, sure, certain=True) == (["from NVML"], False)
    assert gpu_names(monkeypatch, cold, unsure, certain=False) == (["from NVML"], False)
    assert gpu_names(monkeypatch, broken, unsure, certain=True) == (["from NVML"], False)
    assert [gpu.name for gpu in probe._gpus(None, certain=True)] == ["from NVML"]
    assert gpu_names(monkeypatch, cold, unsure, certain=True) == (["from torch"], True)


def test_the_names_of_dynamic_symbols_are_those_that_are_loaded() -> None:
    def section(kind: int, flags: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", 0, kind, flags, 0, offset, size, 0, 0, 1, 0)

    plain, loaded = section(3, 0, 500, 60), section(3, 2, 700, 80)  # elf(5): SHT_STRTAB is 3, SHF_ALLOC is 2

    def library(*sections: bytes) -> bytes:
        start = struct.pack("<Q", 64).rjust(48, b"\0").ljust(58, b"\0")
        return (start + struct.pack("<HH", 64, len(sections))).ljust(64, b"\0") + b"".join(sections)

    for sections in ((plain, loaded), (loaded, plain), (section(1, 2, 900, 9), section(3, 3, 700, 80))):
        assert probe._dynamic_names(library(*sections)) == (700, 780)  # type: ignore[arg-type]
    assert probe._dynamic_names(library(plain, section(3, 1, 900, 9))) == (0, 0)  # type: ignore[arg-type]


@pytest.mark.torch
def test_the_current_gpu_is_torchs_and_there_is_none_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for available, current in ((True, 3), (False, None)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert ours.current_gpu() == current
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ours.importlib.util, "find_spec", lambda name: None)
    assert ours.current_gpu() is None


def test_torchs_folder_is_found_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch was imported')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from precast._load import probe; print(probe.torch_lib_dir())"
    assert spawn.python("-c", code).stdout.strip() == str(tmp_path / "torch" / "lib")
