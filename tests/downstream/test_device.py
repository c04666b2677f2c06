"""Device code as data in somebody else's wheel: compiled by NVRTC (a stand-in), listed, and chosen for each GPU."""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import machine, nvrtc, nvrtc_child
from precast._cubin.code import DeviceCode
from precast._load import images, probe
from precast.build import DeviceExtension, device, wheel
from precast.core.capability import ComputeCapability
from precast.core.host import Gpu, Host, Nvrtc
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.version import CudaVersion, Label, Release
from precast.errors import BuildFailed, KernelError, PrebuiltRefused

FOUND = Nvrtc("libnvrtc.so", None, "13.0.88", (ComputeCapability(8, 0), ComputeCapability(9, 0)), "package")


@dataclass
class Compiler:
    """Gives PTX that names its target, and remembers what it was asked."""

    asked: list[tuple[bytes, str, tuple[str, ...]]] = field(default_factory=list)

    def compile(
        self,
        source: bytes,
        name: str,
        headers: Mapping[str, bytes],
        options: Sequence[str],
        *,
        ptx: bool,
        instances: Sequence[str],
    ) -> nvrtc.Compiled:
        assert ptx and not headers and not instances, "anybody's headers are read by NVRTC itself"
        self.asked.append((source, name, tuple(options)))
        if b"wrong" in source:
            return nvrtc.Compiled(b"", 'bias.cu(1): error: identifier "wrong" is undefined', "NVRTC_ERROR_COMPILATION")
        number = options[0].rpartition("_")[2]
        text = f".version 9.0\n.target sm_{number}\n.visible .entry k(.param .u64 x, .param .f32 f)\n".encode()
        return nvrtc.Compiled(text, "", None, text)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda *asked: (FOUND, ("nvrtc: here",)))
    monkeypatch.setattr(nvrtc_child, "open_nvrtc", lambda found: made)
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "shared.h").write_text("#define ONE 1\n")
    path = tmp_path / "bias.cu"
    path.write_text(
        '#include "shared.h"\n#ifdef NEVER\n#include <cstdint>\n#endif\nextern "C" __global__ void k() {}\n'
    )
    return path


def settings(tmp_path: Path, **more: object) -> Settings:
    return Settings(cache_dir=str(tmp_path / "cache"), max_jobs=2, **more)  # type: ignore[arg-type]


def extension(source: Path, *targets: str, **more: object) -> DeviceCode:
    include = str(source.parent / "include")
    return DeviceExtension("my_ops.bias", str(source), targets=targets, include_dirs=[include], **more).build_aot()  # type: ignore[arg-type]


def test_each_target_has_its_image_and_its_entry(compiler: Compiler, source: Path, tmp_path: Path) -> None:
    made = extension(source, "compute_80", "compute_90", defines={"WIDTH": "4"})
    built = device.build_images(made, tmp_path / "out", settings(tmp_path))
    files = built.files
    assert built.nvrtc == "13.0.88" and "['k', ['u64', 'f32'], {}]" in built.module
    assert [(file.path, file.family, str(file.min_driver)) for file in files] == [
        ("device/bias.compute_90+compute_80.ptx.xz", "bias", "13.0"),
        ("device/bias.compute_90+compute_80.ptx.xz", "bias", "13.0"),
    ]
    content = lzma.decompress((tmp_path / "out" / files[0].path).read_bytes())
    assert len(content) == files[1].end and b".target sm_90" in content[: files[0].end]
    assert b".target sm_80" in content[files[1].offset :]
    assert all(text.startswith(b"#define WIDTH 4\n#line 1\n") for text, _, _ in compiler.asked)
    assert all(f"--include-path={tmp_path / 'include'}" in options for _, _, options in compiler.asked)
    device.build_images(made, tmp_path / "out", settings(tmp_path))
    assert len(compiler.asked) == 2, "the second build compiles nothing"
    (tmp_path / "include" / "shared.h").write_text("#define ONE 2\n")
    device.build_images(made, tmp_path / "out", settings(tmp_path))
    assert len(compiler.asked) == 4, "a header is part of what an image is made of"


def test_a_debugger_is_told_where_the_source_lies(compiler: Compiler, source: Path, tmp_path: Path) -> None:
    device.build_images(extension(source, "compute_90"), tmp_path / "out", settings(tmp_path))
    device.build_images(extension(source, "compute_90"), tmp_path / "out", settings(tmp_path, debug=True))
    (_, usual, options), (_, kept, debug) = compiler.asked
    assert usual == "bias.cu" and "-G" not in options
    assert kept == str(source) and "-G" in debug


def test_without_targets_the_visible_gpus_count(
    compiler: Compiler, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: (ComputeCapability(12, 0),))
    files = device.build_images(extension(source), tmp_path / "out", settings(tmp_path)).files
    assert [file.path for file in files] == ["device/bias.compute_90.ptx.xz"], "the newest that this NVRTC knows"
    files = device.build_images(extension(source), tmp_path / "out", settings(tmp_path, arch_list="compute_80")).files
    assert [file.path for file in files] == ["device/bias.compute_80.ptx.xz"]
    monkeypatch.setattr(machine, "visible_gpus", tuple)
    with pytest.raises(KernelError, match=r"my_ops.bias has no GPU to be compiled for\n.*no visible GPU"):
        device.build_images(extension(source), tmp_path / "out", settings(tmp_path))


def test_what_does_not_compile_says_so(
    compiler: Compiler, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_text("wrong")
    with pytest.raises(BuildFailed, match='identifier "wrong" is undefined'):
        device.build_images(extension(source, "compute_90"), tmp_path / "out", settings(tmp_path))
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda *asked: (None, ("nvrtc: nowhere",)))
    with pytest.raises(KernelError, match=r"found   nvrtc: nowhere\n  needed  NVRTC"):
        device.build_images(extension(source, "compute_90"), tmp_path / "out", settings(tmp_path))


HOST = Host("Linux", "x86_64", Release(3, 11), Release(2, 36), "3.4.30", None, None, CudaVersion(13, 0), (), None)


def test_each_gpu_gets_what_runs_on_it(
    compiler: Compiler, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "my_ops" / "_C"
    built = device.build_images(extension(source, "compute_80", "compute_90"), folder, settings(tmp_path))
    files, version = built.files, built.nvrtc
    label = wheel.label_of([], files, None)
    assert (label, wheel.tag_of([])) == (Label("cu130"), ("py3", "none"))
    info = BuildInfo("1.0", label, BuildMode.MACHINE, None, True, "0" * 64, (("nvrtc", version),), (), files)
    (folder / "build_info.json").write_text(info.to_json())
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")

    def see(*capabilities: ComputeCapability) -> None:
        gpus = tuple(Gpu(index, capability, "a GPU") for index, capability in enumerate(capabilities))
        host = replace(HOST, gpus=gpus)
        monkeypatch.setattr(probe, "probe_host", lambda settings, gpus: host)

    see(ComputeCapability(8, 6), ComputeCapability(12, 0), ComputeCapability(7, 5))
    found = images.images("my_ops", "bias")
    assert {index: str(image.target) for index, image in found.items()} == {0: "compute_80", 1: "compute_90"}
    assert found[1].content + found[0].content == lzma.decompress(found[0].path.read_bytes())
    damaged = replace(info, device=(replace(files[0], content_sha256="0" * 64), files[1]))
    (folder / "build_info.json").write_text(damaged.to_json())
    assert str(images.images("my_ops", "bias")[1].target) == "compute_80", "the next best of what is intact"
    see(ComputeCapability(7, 5))
    with pytest.raises(PrebuiltRefused, match=r"(?s)my_ops.bias has device code for no GPU here\n.*7\.5"):
        images.images("my_ops", "bias")
    see()
    with pytest.raises(PrebuiltRefused, match="has device code for no GPU here"):
        images.images("my_ops", "bias")
