"""Sources with a Python binding, by classes as they were written for the older base: found, built once, told apart."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from setuptools import Distribution

from precast._load import probe
from precast.base_extension import _CudaExtension
from precast.errors import BuildFailed, JitDisabled, KernelIncompatible, KernelUnavailable
from precast.extension import native
from precast.kernel_loader import KernelLoader

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def build_ext(extension: Any, where: Path) -> Path:
    """What plain setuptools makes of an extension."""
    command: Any = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(where), str(where / "tmp")
    command.ensure_finalized()
    command.run()
    (path,) = command.get_outputs()
    return Path(path)


def test_it_is_built_once_and_found_again_by_content(package: ModuleType, tmp_path: Path) -> None:
    extension = package.NumberExtension()
    extension.assert_hardware_compatible()
    first = extension.load()
    assert first.number() == 42 and first.source.kind == "jit" and tmp_path in first.source.path.parents
    again = package.NumberExtension().load()
    assert again.number() == 42 and (again.source.kind, again.source.path) == ("cache", first.source.path)

    header = Path(extension.csrc_abs_path("include/number.h"))
    os.utime(header)
    assert package.NumberExtension().load().source.kind == "cache", "a time is no content"
    header.write_text("#define NUMBER 1\n")
    other = package.NumberExtension().load()
    assert other.number() == 3 and other.source.kind == "jit", "a header that is reached is content"
    assert first.number() == 42, "what is loaded stays what it was"


def test_what_was_built_while_installing_comes_first(package: ModuleType, tmp_path: Path) -> None:
    extension = package.NumberExtension()
    made = extension.build_aot()
    assert made.name == "somebody._C.number_ext" and "-DEXTRA=2" in made.extra_compile_args
    assert all(entry != "" for entry in (*made.sources, *made.include_dirs, *made.extra_compile_args))
    assert not any(Path(source).is_absolute() for source in made.sources), "as setuptools wants it"
    made.define_macros += [("TORCH_EXTENSION_NAME", "number_ext")]
    build_ext(made, tmp_path / "site")
    loaded = package.NumberExtension().load()
    assert loaded.number() == 42 and loaded.source.kind == "prebuilt"
    assert loaded.source.path.parent == tmp_path / "site" / "somebody" / "_C"
    assert not (tmp_path / "cache").exists(), "nothing was built at run time"


def test_what_super_gives(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of the older package add to the folders and flags of their base, or leave the folders to it."""

    class Cuda(package.NumberCudaExtension):  # type: ignore[name-defined,misc]
        def include_dirs(self) -> list[str]:
            return [*_CudaExtension.include_dirs(self), "more"]

        def nvcc_flags(self) -> list[str]:
            return ["-O3", *_CudaExtension.nvcc_flags(self)]

    monkeypatch.setattr(native, "cuda_home", lambda name: "/toolkit")
    folder, toolkit, more = Cuda().include_dirs()
    assert Path(folder) == Path(Cuda().relative_to_abs_path("csrc")) and Path(folder).is_dir()
    assert (Path(toolkit), more) == (Path("/toolkit/include"), "more")
    assert Cuda().nvcc_flags() == ["-O3", "-DCOLOSSAL_WITH_CUDA"]
    assert "include_dirs" not in _CudaExtension.__abstractmethods__


def prebuilt(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "site" / "somebody" / "_C"
    folder.mkdir()
    (folder / "number_ext.py").write_text(content)


def test_what_does_not_fit_is_refused_with_its_reason_and_built_anew(
    warm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard of a wheel for another torch raises KernelIncompatible before anything is opened."""
    reason = "number_ext does not fit\\n  found   torch 2.9"
    prebuilt(tmp_path, f"from precast.errors import KernelIncompatible\nraise KernelIncompatible('{reason}')\n")
    monkeypatch.setenv("PRECAST_JIT", "aot")
    with pytest.raises(KernelIncompatible, match=r"found   torch 2\.9"):
        warm.NumberExtension().load()
    monkeypatch.delenv("PRECAST_JIT")
    with caplog.at_level(logging.WARNING, "precast"):
        assert warm.NumberExtension().load().source.kind in ("jit", "cache")
    assert "number_ext does not fit: found   torch 2.9" in caplog.text


@pytest.mark.parametrize("broken", ["import nowhere_at_all", "raise ImportError('undefined symbol: nowhere')"])
def test_what_is_broken_is_not_swallowed(package: ModuleType, tmp_path: Path, broken: str) -> None:
    prebuilt(tmp_path, f"{broken}\n")
    with pytest.raises(KernelIncompatible, match="nowhere") as caught:
        package.NumberExtension().load()
    assert isinstance(caught.value.__cause__, ImportError) and not (tmp_path / "cache").exists()


def test_the_modes(warm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extension = warm.NumberExtension()
    for mode, what in (("aot", "build one"), ("none", "load a kernel")):
        monkeypatch.setenv("PRECAST_JIT", mode)
        for call in (extension.assert_compatible, extension.load):
            with pytest.raises(JitDisabled, match=f"PRECAST_JIT={mode} forbids to {what}"):
                call()
    prebuilt(tmp_path, "number = lambda: 'prebuilt'\n")
    monkeypatch.setenv("PRECAST_JIT", "aot")
    extension.assert_compatible()
    assert extension.load().number() == "prebuilt"
    monkeypatch.setenv("PRECAST_JIT", "jit")
    assert warm.NumberExtension().load().number() == 42


def test_prebuilt_needs_no_tools_and_a_build_says_which_are_missing(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    extension = package.NumberExtension()
    for call in (extension.assert_compatible, extension.build_jit):
        with pytest.raises(KernelUnavailable, match=r"needed  a C\+\+ compiler") as caught:
            call()
        assert "g++ on PATH: not there" in str(caught.value)
    prebuilt(tmp_path, "number = lambda: 'prebuilt'\n")
    extension.assert_compatible()
    assert extension.load().number() == "prebuilt"


def test_missing_sources_and_errors_of_the_compiler_are_named(package: ModuleType) -> None:
    class Nowhere(package.NumberExtension):  # type: ignore[misc,name-defined]
        def sources_files(self) -> list[str]:
            return [self.csrc_abs_path("nowhere.cpp")]

    class Nothing(Nowhere):
        def sources_files(self) -> list[str]:
            return []

    class Wrong(package.NumberExtension):  # type: ignore[misc,name-defined]
        def cxx_flags(self) -> list[str]:
            return ["-O1"]

    Nowhere.__module__ = Nothing.__module__ = Wrong.__module__ = "somebody.extensions"
    with pytest.raises(KernelUnavailable, match=r"nowhere\.cpp: no such file"):
        Nowhere().load()
    with pytest.raises(KernelUnavailable, match="it names no sources"):
        Nothing().build_aot()
    with pytest.raises(BuildFailed, match=r"EXTRA.* was not declared") as caught:
        Wrong().load()
    assert "env     precast" in str(caught.value)
    log = Path(str(caught.value).rpartition(": ")[2])
    assert "number.cpp" in log.read_text()


def test_a_class_for_cuda_is_told_from_its_flags_and_asks_for_a_toolkit_only_to_build(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch.utils import cpp_extension

    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    (home / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(home))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    extension = package.NumberCudaExtension()
    assert not extension.is_available(), "the torch here has no CUDA"
    assert extension.get_cuda_home_include() == str(home / "include") and extension.priority == 3
    made = extension.build_aot()
    assert made.extra_compile_args["nvcc"] == ["-O3", "--use_fast_math"] and made.extra_compile_args["cxx"] == ["-O3"]
    assert [Path(source).name for source in made.sources] == ["number.cpp", "scale.cu"]
    said, settings = extension._native(), probe.read_settings()
    inputs = native.make_key(said, probe.probe_builders(settings), settings).inputs
    assert (inputs["nvcc"], inputs["targets"]) == ("13.0.88", "9.0") and "number.h" in str(inputs["sources"])
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(KernelUnavailable, match="there is no CUDA toolkit"):
        extension.build_jit()


def test_two_processes_that_start_cold_build_once(package: ModuleType, tmp_path: Path) -> None:
    code = "import somebody.extensions as e; m = e.NumberExtension().load(); print(m.number(), m.source.kind)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    said = sorted(child.communicate(timeout=120)[0].strip() for child in children)
    assert said == ["42 cache", "42 jit"]


def test_it_is_a_loaders_extension_like_any_other(warm: ModuleType) -> None:
    class Loader(KernelLoader):
        pass

    Loader.register_extension(warm.NumberExtension)
    assert Loader().load().number() == 42 and Loader().load() is Loader().load(ext_name="number_ext")
