"""What a build lacks is said before anything is compiled: the cause first, without a traceback."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from setuptools import Extension

from precast._abi.host import TorchInfo
from precast._abi.settings import Settings
from precast._abi.version import CudaVersion, TorchVersion
from precast._builder import machine, toolchain
from precast.build import preflight
from precast.build.command import BuildExtension
from precast.errors import KernelError
from tests.downstream.conftest import CLASSIC_MODULE, STABLE_MODULE

TORCH = TorchInfo(TorchVersion.parse("2.13.0+cu130"), True, CudaVersion(13, 0))
CUDA = Extension("ops.fused", ["fused.cpp", "fused.cu"])


def refused(check: Callable[[], object]) -> str:
    with pytest.raises(KernelError) as caught:
        check()
    return str(caught.value)


def test_a_missing_source_is_named_with_the_one_that_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "fused.cpp").touch()
    preflight.refuse_missing([Extension("ops.fused", ["csrc/fused.cpp"])])
    said = refused(lambda: preflight.refuse_missing([Extension("ops.fused", ["csrc/fusd.cpp"])]))
    assert said.startswith(
        "ops.fused cannot be built\n  found   no file csrc/fusd.cpp\n  needed  csrc/fused.cpp, which"
    )
    assert "the path of a file" in refused(lambda: preflight.refuse_missing([Extension("ops.x", ["elsewhere/y.cpp"])]))


@pytest.mark.compiler
def test_no_torch_no_compiler_and_cuda_sources_for_a_cpu_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    preflight.refuse_unbuildable([], None, settings)
    preflight.refuse_unbuildable([CUDA], TORCH, settings)
    assert "found   no torch\n" in refused(lambda: preflight.refuse_unbuildable([CUDA], None, settings))
    cpu = replace(TORCH, version=TorchVersion.parse("2.13.0+cpu"), cuda=None)
    assert "torch 2.13.0+cpu, a CPU build" in refused(lambda: preflight.refuse_unbuildable([CUDA], cpu, settings))
    preflight.refuse_unbuildable([Extension("ops.fused", ["fused.cpp"])], cpu, settings)
    monkeypatch.setattr(toolchain, "find_compiler", lambda settings: (None, ("compiler: none on PATH",)))
    assert "found   compiler: none on PATH" in refused(lambda: preflight.refuse_unbuildable([CUDA], TORCH, settings))


def test_the_arch_list_is_ours_or_torchs_or_the_gpus_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: ())
    asked = Settings.from_env({"PRECAST_CUDA_ARCH_LIST": "8.0;9.0a;9.0+PTX;compute_100"})
    assert preflight.arch_list([CUDA], asked, {}) == "8.0;9.0a;9.0+PTX;10.0+PTX"
    assert preflight.arch_list([CUDA], asked, {"TORCH_CUDA_ARCH_LIST": "7.5"}) is None
    assert preflight.arch_list([Extension("ops.fused", ["fused.cpp"])], Settings(), {}) is None
    said = refused(lambda: preflight.arch_list([CUDA], Settings(), {}))
    assert "no visible GPU" in said and 'fix     1) TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX" pip wheel' in said
    monkeypatch.setattr(machine, "visible_gpus", lambda: (object(),))
    assert preflight.arch_list([CUDA], Settings(), {}) is None


def test_a_setuptools_before_editable_installs_finds_its_attribute() -> None:
    assert BuildExtension.editable_mode is False  # 59.6 sets none


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("module", "spoil", "said"),
    [
        (STABLE_MODULE, lambda root: (root / "csrc" / "scale.cpp").unlink(), "found   no file csrc/scale.cpp"),
        (CLASSIC_MODULE, lambda root: (root / "csrc" / "fused.cpp").write_text("int x = ;\n"), "messages are above"),
    ],
    ids=["a missing source", "a compile error"],
)
def test_setup_py_ends_with_the_text_alone(
    project: Callable[..., Path],
    setup_py: Callable[..., subprocess.CompletedProcess[str]],
    module: str,
    spoil: Callable[[Path], object],
    said: str,
) -> None:
    root = project(f"spoilt_{len(module)}", module)
    spoil(root)
    done = setup_py(root, "build_ext")
    assert done.returncode != 0 and said in done.stderr
    assert "Traceback" not in done.stderr[done.stderr.index("error: spoilt_") :], done.stderr[-2000:]
