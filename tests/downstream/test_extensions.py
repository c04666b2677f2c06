"""What a setup.py may list, what the bytes of a library say, and the options for a Makefile."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from setuptools import Extension as SetuptoolsExtension

from precast._abi.settings import Settings
from precast._builder import bindings, elf, toolchain
from precast.build import DeviceExtension, StableExtension, ext_modules, facts, labelled, wheel
from precast.build import __main__ as build_main
from precast.core.host import TorchInfo
from precast.core.manifest import HostFile
from precast.core.torch_abi import Exact, Stable
from precast.core.version import CudaVersion, Release, TorchVersion
from precast.errors import KernelError
from tests.kit import spawn

TORCH = TorchInfo(TorchVersion.parse("2.13.0+cu130"), True, CudaVersion(13, 0))


class Loaded:
    """What has build_aot(), as the classes of precast.extension do."""

    def build_aot(self) -> SetuptoolsExtension:
        return SetuptoolsExtension("my_ops.other", ["other.cpp"])


def test_extensions_of_every_kind_are_taken() -> None:
    stable = StableExtension("my_ops.scale", ["scale.cpp"])
    device = DeviceExtension("my_ops.bias", "bias.cu", targets=["sm_90", "compute_90"])
    assert [e.name for e in ext_modules([stable, device], Loaded, SetuptoolsExtension("my_ops.plain", []))] == [
        *("my_ops.scale", "my_ops.bias", "my_ops.other", "my_ops.plain")
    ]
    assert labelled("1.0", [stable, device]) == "1.0", "for every torch, so under no label"


@pytest.mark.parametrize(
    ("extensions", "words"),
    [
        ([StableExtension("scale", [])], "the dotted name of a module of a package, such as 'my_package._C'"),
        ([StableExtension("my_ops.0", [])], "a module of a package"),
        ([StableExtension("my_ops.sc-ale", [])], "a module of a package"),
        ([StableExtension("my_ops.sc\u00e4le", [])], "a module of a package"),
        ([StableExtension("my_ops.scale", []), StableExtension("my_ops.scale", [])], "two extensions of that name"),
        (["my_ops.scale"], "a setuptools extension, or an object with build_aot"),
    ],
)
def test_what_cannot_be_built_is_refused(extensions: list[object], words: str) -> None:
    with pytest.raises(KernelError, match=words):
        ext_modules(*extensions)


def test_a_floor_below_the_stable_abi_is_refused() -> None:
    with pytest.raises(KernelError, match=r"found   floor 2\.9\n  needed  2\.10 or newer"):
        StableExtension("my_ops.scale", [], floor="2.9")


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., bytes]:
    """Compile a library out of declarations and a call, and link it with empty libraries of these names."""

    def make(code: str, *sonames: str) -> bytes:
        for soname in sonames:
            spawn.library(tmp_path / soname, "", "-nostdlib", f"-Wl,-soname,{soname}")
        names = [tmp_path / soname for soname in sonames]
        return spawn.library(tmp_path / "made.so", code, "-Wl,--no-as-needed", *names).read_bytes()

    return make


CUDA = "namespace at { int get_num_threads(); } int x() { return at::get_num_threads(); }"


def host_file(data: bytes, torch: TorchInfo | None = TORCH, stable: Stable | None = None) -> HostFile:
    library = facts.compiled("my_ops.fused", ".so", data, limited=False)
    built = None if torch is None else facts.torch_abi(torch)
    return facts.entry(library, built, wheel.label_of_torch(torch), stable)


@pytest.mark.compiler
def test_a_library_is_bound_to_what_its_bytes_name(library: Callable[..., bytes]) -> None:
    file = host_file(library(CUDA, "libtorch_cpu.so", "libcudart.so.13"))
    assert (file.abi, file.cuda_major, file.python) == (Exact(Release(2, 13), True), 13, "none")
    file = host_file(library(CUDA, "libc10_cuda.so"))
    assert file.cuda_major == 13, "torch's own CUDA libraries are of torch's CUDA"
    python = 'extern "C" int PyObject_IsTrue(void*); int x() { return PyObject_IsTrue(nullptr); }'
    assert host_file(library(python)).python.startswith("cp3")
    assert host_file(library("int x() { return 1; }", "libtorch_python.so")).python == "none", "linked, not called"
    module = 'extern "C" void* PyInit_fused() { return nullptr; }'
    assert host_file(library(module)).python.startswith("cp3")
    assert host_file(library(module.replace("fused", "other"))).python == "none"
    assert host_file(library("int x() { return 1; }"), torch=None).abi == Stable(Release(2, 4))


@pytest.mark.compiler
def test_a_library_that_contradicts_itself_is_refused(library: Callable[..., bytes]) -> None:
    with pytest.raises(KernelError, match=r"libcudart\.so\.12, and a torch with CUDA 13"):
        host_file(library(CUDA, "libcudart.so.12"))
    with pytest.raises(KernelError, match=r"not on torch's stable ABI\n  found   uses _ZN2at15get_num_threadsEv"):
        host_file(library(CUDA), stable=Stable(Release(2, 10)))
    with pytest.raises(KernelError, match="nothing says which torch has it"):
        host_file(library(CUDA), torch=None)
    with pytest.raises(KernelError, match="made no usable library"):
        host_file(b"no library")
    nightly = replace(TORCH, version=TorchVersion.parse("2.14.0.dev20260101"))
    with pytest.raises(KernelError, match="so no module can be matched to it"):
        host_file(library(CUDA), torch=nightly)


def test_stable_code_of_torch_is_no_classic_code() -> None:
    def bound(*undefined: str) -> tuple[str, ...]:
        info = elf.ElfInfo("x86_64", None, (), (2, 28), (3, 4), frozenset(undefined), frozenset())
        return bindings.binding(info).classic

    assert bound("_ZN5torch6stable6TensorC1Ev", "aoti_torch_empty", "_ZN5torch10headeronly1xEv") == ()
    for name in ("_ZN2at6TensorC1Ev", "_ZNK3c107IValue3tagEv", "_ZN5torch8autograd3runEv", "_ZTVN2at4ImplE"):
        assert bound(name) == (name,)


@pytest.mark.torch
@pytest.mark.compiler
def test_a_makefile_builds_with_the_printed_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def words(*asked: str) -> list[str]:
        assert build_main.main([*asked]) == 0
        return shlex.split(capsys.readouterr().out)

    (tmp_path / "op.cpp").write_text(
        "#include <torch/csrc/stable/library.h>\nSTABLE_TORCH_LIBRARY(made_by_hand, m) {}\n"
    )
    spawn.run("g++", *words("--cflags"), "-c", "op.cpp", "-o", "op.o", cwd=tmp_path)
    spawn.run("g++", "-o", "op.so", "op.o", *words("--ldflags"), cwd=tmp_path)
    assert "libtorch_cpu.so" in elf.read_shared_object((tmp_path / "op.so").read_bytes()).needed
    assert {"-O0", "-g"} <= set(words("--cflags", "--debug"))
    assert "-G" in words("--cuda-flags", "--debug") and "-lineinfo" in words("--cuda-flags")
    assert any(word.endswith("/torch/include") for word in words("--include", "--classic"))


def test_nvcc_is_told_the_listed_targets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PRECAST_CUDA_ARCH_LIST", "8.0;9.0a;9.0+PTX")
    assert build_main.main(["--cuda-flags"]) == 0
    said = capsys.readouterr().out
    for code in ("arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a", "arch=compute_90,code=compute_90"):
        assert f"-gencode {code}" in said


def test_flags_and_an_audit_are_not_asked_for_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--cflags", "--audit", "x.whl"]):
        with pytest.raises(SystemExit, match="2"):
            build_main.main(arguments)
    assert "ask for flags or for an audit" in capsys.readouterr().err


def test_a_compiler_cache_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain.launcher() == ()
    (tmp_path / "sccache").touch(0o755)
    assert toolchain.launcher() == (str(tmp_path / "sccache"),)
    (tmp_path / "ccache").touch(0o755)
    assert toolchain.launcher() == (str(tmp_path / "ccache"),)


def test_settings_of_the_environment_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "MAX_JOBS": "many"})
    assert build_main.main(["--include"]) == 2
    assert "MAX_JOBS='many' is not accepted" in capsys.readouterr().err
    assert Settings.from_env({}).max_jobs is None
