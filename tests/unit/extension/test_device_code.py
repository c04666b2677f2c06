"""Device code as data: what NVRTC makes of somebody's sources, how it is kept and found, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from precast._builder import nvrtc
from precast._cubin import images
from precast._cubin.code import DeviceCode
from precast._cubin.images import Entry, Image, Usage
from precast._load import probe
from precast.build import device
from precast.core import gpus
from precast.core.capability import GpuTarget
from precast.core.host import Builders, Nvrtc
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.version import CudaVersion, Label
from precast.errors import BuildFailed, JitDisabled, KernelError, KernelIncompatible, KernelUnavailable
from precast.extension import DeviceExtension, headers
from tests.kit import hosts as ex

Find = Callable[[str], Nvrtc]
PTX = """
.visible .entry fill(
\t.param .u64 .ptr .global .align 4 fill_param_0,
\t.param .f64 fill_param_1, .param .align 64 .b8 fill_param_2[128]
)
{ ld.param.u64 %rd1, [fill_param_0]; }
.weak .entry _Z5scaleIfLi4EEvPT_fi(
\t.param .u64 _Z5scaleIfLi4EEvPT_fi_param_0, .param .u32 _Z5scaleIfLi4EEvPT_fi_param_1
)
"""
LOG = """ptxas info    : Compiling entry function 'fill' for 'sm_90'
ptxas info    : Function properties for fill
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


def image(target: str, toolkit: str = "13.0", source: str = "scale") -> Image:
    entries = {"fill": Entry("fill", ("u64", "b8[128]"), Usage(40, 8, 12, 16))}
    return Image(source, GpuTarget.parse(target), CudaVersion.parse(toolkit), entries, target.encode())


def test_entry_points_are_read_with_parameters_and_usage() -> None:
    entries = images.read_entries(PTX, LOG, {"scale<float, 4>": "_Z5scaleIfLi4EEvPT_fi"})
    assert entries == {
        "fill": Entry("fill", ("u64", "f64", "b8[128]"), Usage(40, 8, 12, 16)),
        "scale<float, 4>": Entry("_Z5scaleIfLi4EEvPT_fi", ("u64", "u32"), None),
    }


def test_images_come_back_as_they_were() -> None:
    kept = (image("sm_90a"), image("compute_80", "12.1"))
    packed = images.pack(kept)
    assert images.unpack(packed, "x") == kept
    assert packed == images.pack(kept), "the same bytes every time"


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda data: b"", "no device code"),
        (lambda data: data[:30], "cut off"),
        (lambda data: data[:-1], "not those that were built"),
        (lambda data: data[:-1] + b"!", "not those that were built"),
    ],
)
def test_damaged_images_are_refused(damage: Callable[[bytes], bytes], found: str) -> None:
    with pytest.raises(KernelIncompatible, match=found):
        images.unpack(damage(images.pack([image("sm_90")])), "somebody.so")


@pytest.mark.wheel
@pytest.mark.torch
@pytest.mark.parametrize("label", ["cu121", "cu130"])
def test_build_aot_is_a_device_extension(
    package: ModuleType, tmp_path: Path, label_nvrtc: Find, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package.ScaleExtension().build_aot()
    assert type(made) is DeviceCode and made.name == "somebody._C.scale_ext", "for a setup.py, nothing compiled"
    compiler = label_nvrtc(label)
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda *asked: (compiler, ()))
    monkeypatch.setenv("PRECAST_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    folder = tmp_path / "site" / "somebody" / "_C"
    built = device.build_images(made, folder, probe.read_settings())
    assert {str(file.target) for file in built.files} == {"sm_80", "sm_90", "compute_90"}
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, True, "0" * 64, (), (), built.files)
    (folder / "__init__.py").touch()
    (folder / "build_info.json").write_text(info.to_json())
    (folder / "scale_ext.py").write_text(built.module)
    importlib.invalidate_caches()
    extension = package.ScaleExtension()
    pretend(monkeypatch, "9.0", None)
    loaded = extension.load()
    assert loaded.source.kind == "prebuilt" and [str(one.detail) for _, one in loaded.images] == ["sm_90"]
    assert set(dir(loaded)) >= {"fill", "scale<float, 4>", "scale<double, 2>"}
    assert loaded.fill.parameters == ("u64", "f64", "u8", "b8[128]")
    assert getattr(loaded, "scale<float, 4>").parameters == ("u64", "f32", "u32")
    usage = loaded.fill.usage()
    assert usage is not None and 0 < usage.registers < 64 and usage.spill_store_bytes == 0
    pretend(monkeypatch, "12.0", None)
    assert extension.load().fill.usage() is None, "PTX: the driver decides"
    pretend(monkeypatch, "7.5", None)
    monkeypatch.setenv("PRECAST_JIT", "aot")
    with pytest.raises(JitDisabled, match=r"sm_80.*rejected \(arch\).*7\.5"):
        extension.assert_compatible()


@pytest.mark.wheel
def test_defines_headers_and_flags_are_part_of_what_is_built(
    package: ModuleType, label_nvrtc: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    from precast._cubin import programs

    nvrtc, settings = label_nvrtc("cu130"), probe.read_settings()
    extension, target = package.ScaleExtension(), GpuTarget.parse("sm_90")
    said = extension._programs()
    (first,) = programs.build(said, [target], nvrtc, settings, "a test")
    (again,) = programs.build(said, [target], nvrtc, settings, "a test")
    assert (first.source.kind, again.source.kind) == ("jit", "cache") and first.key == again.key
    others = [
        dataclasses.replace(said, defines={"OFFSET": "2.0f"}),
        dataclasses.replace(said, flags=("--use_fast_math",)),
        dataclasses.replace(said, instances={}),
    ]
    keys = {programs.build(one, [target], nvrtc, settings, "a test")[0].key for one in others}
    monkeypatch.setenv("PRECAST_DEBUG", "1")
    debug = probe.read_settings()
    assert "-G" in programs.options(said, target, debug)
    (lined,) = programs.build(said, [target], nvrtc, debug, "a test")
    assert b".debug_line" in lined.image.code or b".nv_debug_line" in lined.image.code
    Path(extension.csrc_abs_path("include/number.h")).write_text("#define NUMBER 2\n")
    keys |= {lined.key, programs.build(said, [target], nvrtc, settings, "a test")[0].key}
    assert len(keys | {first.key}) == 6

    with pytest.raises(BuildFailed, match='identifier "OFFSET" is undefined'):
        programs.build(dataclasses.replace(said, defines={}), [target], nvrtc, settings, "a test")
    with pytest.raises(KernelUnavailable, match="which knows"):
        programs.build(said, [GpuTarget.parse("sm_70")], nvrtc, settings, "a test")
    strange = dataclasses.replace(said, instances={"other.cu": ("x",)})
    with pytest.raises(KernelUnavailable, match=r"instances of other\.cu"):
        programs.build(strange, [target], nvrtc, settings, "a test")
    Path(extension.csrc_abs_path("scale.cu")).write_text("__device__ int x;\n")
    with pytest.raises(BuildFailed, match="no entry point"):
        programs.build(dataclasses.replace(said, instances={}), [target], nvrtc, settings, "a test")


def pretend(monkeypatch: pytest.MonkeyPatch, gpu: str, nvrtc: Nvrtc | None) -> None:
    host = ex.host(gpu=gpu) if gpu else ex.host(gpu="", driver=None)
    monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
    monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))
    monkeypatch.setattr(probe, "probe_builders", lambda settings: Builders(None, None, nvrtc, ("nvrtc: nowhere",)))


def test_what_is_missing_is_named(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    extension = package.ScaleExtension()
    pretend(monkeypatch, "", None)
    with pytest.raises(KernelUnavailable, match="no CUDA driver"):
        extension.assert_compatible()
    pretend(monkeypatch, "9.0", None)
    assert extension.is_available()
    for call in (extension.assert_compatible, extension.load, extension.assert_build_compatible):
        with pytest.raises(KernelUnavailable, match="nvidia-cuda-nvrtc"):
            call()
    monkeypatch.setenv("PRECAST_JIT", "none")
    with pytest.raises(JitDisabled, match="forbids to load a kernel"):
        extension.load()


def test_named_targets_are_kept_to(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hopper(package.ScaleExtension):  # type: ignore[misc,name-defined]
        def targets(self) -> list[str]:
            return ["sm_90a", "compute_80"]

    known = ex.nvrtc("13.0.88")
    for gpu, wanted in (("9.0", "sm_90a"), ("8.6", "compute_80")):
        pretend(monkeypatch, gpu, known)
        (chosen,) = Hopper()._choose(probe.read_settings(), certain=False)
        assert str(chosen.target) == wanted
    pretend(monkeypatch, "7.5", known)
    with pytest.raises(KernelUnavailable, match="needed  a GPU that sm_90a or compute_80 runs on"):
        Hopper().assert_compatible()


def test_headers_are_found_by_what_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for find, marker, package in (
        (headers.cutlass, "cutlass_library/source/include/cute/tensor.hpp", "nvidia-cutlass"),
        (headers.cccl, "nvidia/cu13/include/cccl/cuda/std/type_traits", "nvidia-cuda-cccl"),
        (headers.cuda, "nvidia/cuda_runtime/include/cuda_fp16.h", "nvidia-cuda-runtime"),
    ):
        with pytest.raises(KernelUnavailable, match=f"pip install {package}"):
            find()
        (tmp_path / marker).parent.mkdir(parents=True)
        (tmp_path / marker).touch()
        assert find() == str(tmp_path / marker.partition("include")[0] / "include") + ("/cccl" * (find is headers.cccl))


CUB = """
#include <cuda_bf16.h>
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void sum(const __nv_bfloat16* x, float* y, int n) {
  using Reduce = cub::BlockReduce<float, 256>;
  __shared__ typename Reduce::TempStorage storage;
  float mine = 0;
  for (int i = threadIdx.x; i < n; i += 256) mine += __bfloat162float(x[i]);
  const float whole = Reduce(storage).Sum(mine);
  if (threadIdx.x == 0) *y = whole;
}
"""


@pytest.mark.wheel
def test_cub_of_pypi_compiles(
    tmp_path: Path, label_nvrtc: Find, monkeypatch: pytest.MonkeyPatch, kept_folder: Callable[[str], Path]
) -> None:
    from precast._cubin import programs

    nvrtc = label_nvrtc("cu130")
    minor = ".".join(nvrtc.version.split(".")[:2])
    site = kept_folder(f"headers-{minor}")
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.syspath_prepend(str(site))
    if not (site / "nvidia").is_dir():
        wanted = [f"nvidia-cuda-cccl=={minor}.*", f"nvidia-cuda-runtime=={minor}.*"]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--target"]
        subprocess.run([*command, str(site), *wanted], check=True)
    (tmp_path / "sum.cu").write_text(CUB)
    folders = (headers.cuda(), headers.cccl())
    said = programs.Programs("sum_ext", (str(tmp_path / "sum.cu"),), folders, {}, {}, ())
    (built,) = programs.build(said, [GpuTarget.parse("sm_90")], nvrtc, probe.read_settings(), "a test")
    entry = built.image.entries["sum"]
    assert entry.parameters == ("u64", "u64", "u32") and entry.usage is not None and entry.usage.stack_bytes == 0


def test_a_class_of_a_script_has_no_place_in_a_wheel_also_after_its_path_was_asked_for() -> None:
    made = type("Scale", (DeviceExtension,), {"__module__": "a_script"})("scale")
    assert made.prebuilt_import_path == "a_script._C.scale"
    with pytest.raises(KernelError, match="class Scale in a_script, which is not in a package"):
        made.build_aot()
    named = DeviceExtension("my_ops.cuda", "scale.cu", targets=["sm_90"])
    assert named.name == "cuda" and named.prebuilt_import_path == named.build_aot().name == "my_ops.cuda"
