"""Thirteen defects of the loader that this one stands in for; none of them may come back. Each test bears its name."""

from __future__ import annotations

import platform
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from precast import base_extension, errors, kernel_loader
from precast._abi.arch_list import parse_arch_list
from precast._abi.settings import Settings
from precast._builder import cache, catalogue, device, flags, host, machine, nvrtc, sources, toolchain
from precast._builder.cache import BuildKey, Cache
from precast._load import jit, loader, verdict
from precast.core.host import Compiler
from precast.core.version import CudaVersion, Release, TorchVersion
from precast.errors import JitDisabled, KernelError, KernelIncompatible, KernelUnavailable
from precast.extension import Extension
from precast.kernel_loader import CPUAdamLoader, KernelLoader, RMSNormLoader
from tests.defects.conftest import Pretend
from tests.kit import fakes, spawn
from tests.kit import hosts as ex
from tests.unit.csrc.test_launch import scenario

CSRC = Path(__file__).resolve().parents[2] / "csrc"


@pytest.mark.compiler
def test_defect_01_a_prebuilt_cuda_kernel_needs_no_toolkit(
    pretend: Pretend, calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    looked = pretend(ex.host(gpu="9.0"))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    verdict.assert_served(catalogue.get("rms_norm"), "cuda")
    loaded = loader.ensure("rms_norm", "cuda")
    assert [source.kind for _, source in loaded.images] == ["prebuilt"] and loaded.host.kind == "prebuilt"
    assert looked == [], "nobody has looked for a compiler"


def test_defect_02_adam_on_the_cpu_needs_no_gpu_no_nvcc_and_not_this_processor(
    pretend: Pretend, c_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None), driver=None, gpu="", build_with=ex.builders(None)))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    extension = CPUAdamLoader.extensions()[0]
    assert extension.is_available()
    extension.assert_compatible()
    tree = sources.Tree({"csrc": CSRC})
    text = b"".join(
        file.data for file in tree.reachable([f"csrc/{name}" for name in catalogue.get("cpu_adam").sources])
    )
    assert b"#include <cuda" not in text and b"cuda_fp16" not in text
    levels = flags.cpu_levels("x86_64")
    assert [level.name for level in levels] == ["baseline", "avx2", "avx512"]
    options = [option for level in levels for option in (*flags.host_options("g++", debug=False), *level.options)]
    assert "-march=native" not in options and not [option for option in options if option.startswith("-mtune")]


@pytest.mark.compiler
def test_defect_03_an_undefined_symbol_is_not_swallowed(
    pretend: Pretend, calls: Path, c_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 9 of the decision table as well: the linker's words are kept, and a build here is tried once."""
    unfit = spawn.library(tmp_path / "unfit.so", "extern int nowhere(); int use() { return nowhere(); }")
    fakes.write_installation(c_dir, unfit)
    looked = pretend(ex.host(build_with=ex.builders()))
    monkeypatch.setenv("PRECAST_JIT", "aot")
    with pytest.raises(JitDisabled, match=r"undefined symbol: .*nowhere") as refused:
        loader.ensure("cpu_adam", "cpu")
    assert "(damaged)" in str(refused.value), "the error comes out, and nothing is compiled instead"
    assert looked == ["builders"], "only for the fix: allowing a build would not help without a compiler"

    tried: list[str] = []

    def build(*arguments: Any) -> Any:
        tried.append(arguments[-1])
        raise errors.BuildFailed("once")

    monkeypatch.setenv("PRECAST_JIT", "auto")
    monkeypatch.setattr(loader, "_state", loader._State())
    monkeypatch.setattr(jit, "build_host", build)
    with pytest.raises(errors.BuildFailed):
        loader.ensure("cpu_adam", "cpu")
    assert len(tried) == 1 and "undefined symbol" in tried[0], "the build says why it happens"


def test_defect_04_kernels_share_no_build_folder_and_no_lock(tmp_path: Path) -> None:
    """Two builds are in their folders at the same time; with one lock for both, neither would ever end."""
    both = threading.Barrier(2, timeout=20)
    folders: dict[str, Path] = {}

    def build(name: str) -> None:
        def inside(staging: Path) -> Path:
            both.wait()
            folders[name] = staging
            (staging / "build.ninja").write_text(name)
            both.wait()
            assert (staging / "build.ninja").read_text() == name
            (staging / f"{name}.so").write_text(name)
            return staging / f"{name}.so"

        Cache(tmp_path).obtain(BuildKey(name, {"kind": "host"}), inside)

    threads = [threading.Thread(target=build, args=(name,)) for name in ("rms_norm", "softmax")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert folders.keys() == {"rms_norm", "softmax"} and folders["rms_norm"] != folders["softmax"]


def copy_of_csrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import shutil

    copy = tmp_path / "csrc"
    shutil.copytree(CSRC, copy, ignore=shutil.ignore_patterns("torch_stable"))
    monkeypatch.setattr(sources, "csrc_dir", lambda *_: copy)
    return copy


def host_key(compiler: Compiler, *, debug: bool = False, level: int = 0) -> str:
    levels = (flags.cpu_levels("x86_64")[level],)
    return host.make_plan((catalogue.get("cpu_adam"),), compiler, debug=debug, levels=levels).key.digest


def test_defect_05_the_key_holds_sources_flags_target_and_compiler_and_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of_csrc(tmp_path, monkeypatch)
    gcc = Compiler("/usr/bin/g++", "12.2.0", "g++")
    before = host_key(gcc)
    assert host_key(Compiler("/opt/gcc/bin/g++", "12.2.0", "g++")) == before, "where it lies is not in it"
    (copy / "cpu_optim/cpu.cpp").touch()
    assert host_key(gcc) == before, "nor is a time"
    others = {
        host_key(Compiler("/usr/bin/g++", "13.1.0", "g++")),
        host_key(gcc, debug=True),
        host_key(gcc, level=1),
    }
    header = copy / "host" / "checks.h"
    header.write_text(header.read_text() + "// another\n")
    others.add(host_key(gcc))
    assert len(others | {before}) == 5, "an edited header, another flag, level or compiler is another build"

    program = device.read_program(catalogue.get("softmax"))
    keys = {
        device.image_key(program, target, ex.nvrtc(version), debug=False).digest
        for target in parse_arch_list("sm_90 sm_121 compute_90")
        for version in ("12.9.86", "13.0.88")
    }
    assert len(keys) == 6


def test_defect_05_the_place_of_builds_can_be_chosen_and_need_not_be_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.default_root(Settings(cache_dir=str(tmp_path / "named"))) == tmp_path / "named"
    (tmp_path / "home").write_text("a file, so nothing can be made in it")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = cache.default_root(Settings(home=str(tmp_path / "home")))
    assert found.parent == tmp_path and found.stat().st_mode & 0o777 == 0o700


def test_defect_06_a_named_extension_is_checked_and_a_typo_lists_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(KernelUnavailable, match="it is for aarch64 machines"):
        CPUAdamLoader().load(ext_name="cpu_adam_arm")
    with pytest.raises(KernelUnavailable, match="one of cpu_adam_x86, cpu_adam_arm"):
        CPUAdamLoader().load(ext_name="cpu_adam_x68")


class Plain(Extension):
    """An extension that can always be loaded, and counts."""

    loads = 0

    def __init__(self) -> None:
        super().__init__("plain", support_aot=False, support_jit=True, priority=9)

    def is_available(self) -> bool:
        return True

    def assert_compatible(self) -> None:
        pass

    def build_aot(self) -> Any:
        raise NotImplementedError

    def build_jit(self) -> Any:
        return self.load()

    def load(self) -> Any:
        Plain.loads += 1
        return object()


def test_defect_07_registries_do_not_leak_and_can_be_undone() -> None:
    class One(KernelLoader):
        pass

    class Other(KernelLoader):
        pass

    One.register_extension(Plain)
    assert (One.names(), Other.names(), KernelLoader.names()) == (("plain",), (), ())
    assert "plain" not in RMSNormLoader.names()
    with pytest.raises(ValueError, match="already has an extension 'plain'"):
        One.register_extension(Plain)
    with pytest.raises(TypeError, match="is not an extension"):
        One.register_extension(int)  # type: ignore[arg-type]
    One.unregister_extension("plain")
    assert One.names() == ()


def test_defect_08_a_kernel_is_loaded_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Loader(KernelLoader):
        pass

    Loader.register_extension(Plain)
    before = Plain.loads
    first = Loader().load()
    assert all(Loader().load() is first for _ in range(3)) and Plain.loads == before + 1
    assert capsys.readouterr() == ("", "")


def test_defect_09_versions_and_targets_are_read_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CudaVersion.parse("12.10") == CudaVersion(12, 10) > CudaVersion.parse("12.9")
    late, early = TorchVersion.parse("2.10.11"), TorchVersion.parse("2.9.12+cu130")
    assert (late.release, late.patch) == (Release(2, 10), 11) and early.release < late.release and early.patch == 12
    assert [str(target) for target in parse_arch_list("8.0;9.0a+PTX")] == ["sm_80", "sm_90a", "compute_90a"]
    # For GPUs that are not here: no GPU is asked for, and what was named is what is built.
    monkeypatch.setattr(machine, "visible_gpus", lambda: pytest.fail("a GPU was looked for"))
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda *_: (ex.nvrtc("13.0.88"), ()))
    _, wanted = machine.targets(Settings(arch_list="9.0;12.1+PTX"))
    assert [str(target) for target in wanted] == ["sm_90", "sm_121", "compute_121"]


def test_defect_10_what_is_documented_exists_in_both_spellings() -> None:
    assert issubclass(Plain, base_extension._Extension)
    for made in (extension for one in kernel_loader.loaders() for extension in one.extensions()):
        assert made.is_hardware_available() == made.is_available()
        assert callable(made.assert_hardware_compatible)
    page = (Path(__file__).resolve().parents[2] / "docs/reference/api.md").read_text()
    named = set(re.findall(r"`(\w+Loader)`", page))
    assert named and all(hasattr(kernel_loader, name) for name in named)


@pytest.mark.compiler
def test_defect_11_every_launch_is_on_the_current_stream_of_the_tensors_own_device(folder: Path) -> None:
    out = scenario(
        folder, "image(0)\nimage(1, 'sm_80', (8, 0))\nout['errors'] = [launch(1), launch(0)]\nout['record'] = record()"
    )
    launches = [word for word in out["record"] if word.startswith(("launch", "in(", "stream("))]
    assert launches == ["launch(2101)", "in(101)", "stream(41)", "launch(2100)", "in(100)", "stream(40)"]
    # And there is no other way to launch: the driver's function is named in the launch protocol alone.
    for file in [*CSRC.rglob("*.cpp"), *CSRC.rglob("*.cu"), *CSRC.rglob("*.h"), *CSRC.rglob("*.cuh")]:
        if "torch_stable" in file.parts:
            continue
        text = file.read_text(encoding="utf-8")
        assert "<<<" not in text and "cudaLaunch" not in text, file
        if "cuLaunchKernel" in text or "launch_kernel(" in text:
            assert file.parent.name == "gpu", file


def test_defect_12_every_refusal_has_one_base_class(
    pretend: Pretend, c_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(ex.host(torch=None, torch_error="OSError: libtorch.so"))
    monkeypatch.setattr(loader, "_state", loader._State())  # whatever this process has loaded
    (tmp_path / "file").touch()

    class Loader(CPUAdamLoader):
        pass

    def with_variable(name: str, value: str) -> None:
        monkeypatch.setenv(name, value)
        try:
            loader.ensure("cpu_adam", "cpu")
        finally:
            monkeypatch.delenv(name)

    bad = [
        lambda: loader.ensure("cpu_adam", "cpu"),
        lambda: loader.ensure("cpu_adam", "cuda"),
        lambda: loader.load("no_such_op"),
        lambda: loader.load("adam_", "cuda:x"),
        lambda: Loader().load(),
        lambda: Loader().load("no_such_extension"),
        lambda: with_variable("PRECAST_JIT", "perhaps"),
        lambda: Cache(tmp_path / "file").obtain(BuildKey("x", {}), lambda staging: staging),
        lambda: ((c_dir / "build_info.json").write_text("{"), loader.ensure("cpu_adam", "cpu")),
    ]
    for call in bad:
        with pytest.raises(KernelError) as caught:
            call()
        assert str(caught.value), "and it says something"
    family = (KernelUnavailable, KernelIncompatible, errors.BuildFailed, JitDisabled, errors.BuildTimeout)
    assert all(issubclass(kind, KernelError) for kind in family)


@pytest.mark.compiler
def test_defect_13_the_avx512_path_is_compiled_and_chosen(tmp_path: Path) -> None:
    """The level is a unit of its own with its own options, and its code uses the wide registers."""
    if platform.machine() != "x86_64":
        assert flags.best_level("x86_64", frozenset()).name == "baseline"
        return
    compiler, looked_at = toolchain.find_compiler(Settings())
    assert compiler is not None, looked_at
    used = {}
    for level in flags.cpu_levels("x86_64"):
        options = [*flags.host_options(compiler.kind, debug=False), *flags.cpu_options(level, debug=False)]
        source = CSRC / catalogue.get("cpu_adam").cpu[0]
        out = tmp_path / f"{level.name}.s"
        subprocess.run([compiler.path, *options, f"-I{CSRC}", "-S", str(source), "-o", str(out)], check=True)
        used[level.name] = {register for register in ("ymm", "zmm") if f"%{register}" in out.read_text()}
    assert used["baseline"] == set() and "zmm" not in used["avx2"] and "zmm" in used["avx512"], used
    everything = frozenset(feature for level in flags.cpu_levels("x86_64") for feature in level.features)
    assert flags.best_level("x86_64", everything).name == "avx512"
    assert flags.best_level("x86_64", everything - {"avx512f"}).name == "avx2"


def test_the_thirteen_are_here() -> None:
    names = [name for name in globals() if name.startswith("test_defect_")]
    assert {int(name.split("_")[2]) for name in names} == set(range(1, 14))
