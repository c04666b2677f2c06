"""Parts are taken whole or refused by name; nothing that is missing is compiled instead."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import aot, binaries, catalogue, headers, matrix, packing, parts
from precast._builder.binaries import Made
from precast._builder.cache import Cache
from precast.core.capability import GpuTarget
from precast.core.manifest import BuildInfo, BuildMode, HostFile, host_path
from precast.core.torch_abi import ANY_TORCH
from precast.core.version import Label, Release

ABI = ANY_TORCH
MACHINE = platform.machine()
FAMILIES = tuple(family.name for family in catalogue.FAMILIES)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def host_part(source: Path) -> Made:
    data = b"a library"
    source.write_bytes(data)
    file = HostFile(
        host_path(ABI, MACHINE),
        sha256(data),
        len(data),
        ABI,
        MACHINE,
        ("libc.so.6",),
        Release(2, 14),
        "3.4.19",
        ("baseline",),
        FAMILIES,
    )
    return Made(host=((file, source),), compilers=(("g++", "12.2.0"),))


def image(spec: matrix.LabelSpec, family: str, target: GpuTarget) -> bytes:
    return f"{spec.name} {family} {target}".encode() * 9


def device_part(folder: Path, spec: matrix.LabelSpec) -> Made:
    """Made-up images of a label, packed as real ones are."""
    found, cache, files = spec.nvrtc or "", Cache(folder / "cache"), []
    for family in catalogue.FAMILIES:
        if family.device is not None:
            images = {target: image(spec, family.name, target) for target in spec.targets}
            files += binaries.packed(family.name, images, found, cache, 2)
    return Made(device=tuple(files), compilers=(("nvrtc", found),))


@pytest.fixture(scope="module")
def known() -> matrix.Matrix:
    """The real matrix, but without any adapter: what is made up here is small."""
    return replace(matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml"), classic_built=())


@pytest.fixture
def folder(tmp_path: Path, known: matrix.Matrix, checkout: Path) -> Path:
    """Made-up parts of a host library and of the two labels whose code the default wheel takes."""
    out = tmp_path / "parts"
    parts.write(host_part(tmp_path / "made.so"), Label(""), checkout, out / parts.host_name(ABI, MACHINE))
    for name in ("cu128", "cu130"):
        spec = known.label(Label(name))
        made = device_part(tmp_path / name, spec)
        parts.write(made, spec.label, checkout, out / parts.device_name(spec))
    return out


@pytest.fixture
def take(folder: Path, known: matrix.Matrix, checkout: Path) -> Callable[[str], Made]:
    return lambda label: parts.take(folder, known, known.label(Label(label)), MACHINE, checkout, Settings())


def change(path: Path, **entries: object) -> None:
    """Change what a part says of itself."""
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **entries}))


def test_a_label_takes_its_host_library_and_its_device_code(take: Callable[[str], Made], known: matrix.Matrix) -> None:
    made = take("cu130")
    assert [file.path for file, _ in made.host] == ["host/kernels-x86_64.so"]
    with_code = sum(family.device is not None for family in catalogue.FAMILIES)
    assert len(made.device) == with_code * len(known.label(Label("cu130")).targets)
    assert made.compilers == (("g++", "12.2.0"), ("nvrtc", "13.0.88"))
    assert all(source.stat().st_size == size for size, source in made.files.values())


def test_the_cpu_label_takes_no_device_code(take: Callable[[str], Made]) -> None:
    assert take("cpu").device == ()


def test_the_default_takes_the_code_of_two_compilers(folder: Path, known: matrix.Matrix, checkout: Path) -> None:
    spec, thor = known.label(Label("")), GpuTarget.parse("sm_110")
    settings = Settings(cache_dir=str(folder.parent / "cache"), max_jobs=2)
    made = parts.take(folder, known, spec, MACHINE, checkout, settings)
    by_target = {str(file.target): file.nvrtc for file, _ in made.device}
    assert by_target["sm_110"] == "13.0.88" and by_target["sm_120"] == "12.8.93"
    assert set(by_target) == {str(target) for target in spec.targets}
    (file, packed), *_ = (pair for pair in made.device if pair[0].target == thor)
    assert packing.unpack(packed.read_bytes(), file.end) == image(known.label(Label("cu130")), file.family, thor), (
        "nothing else is in its file"
    )
    assert made.compilers == (("g++", "12.2.0"), ("nvrtc", "12.8.93"), ("nvrtc", "13.0.88"))


def test_a_slim_wheel_takes_one_host_library(folder: Path, known: matrix.Matrix, checkout: Path) -> None:
    exact = known.hosts(MACHINE, Release(2, 11))
    assert exact == (ABI,) and known.hosts(MACHINE, Release(2, 6)) == ()
    made = parts.take(folder, known, known.label(Label("cpu")), MACHINE, checkout, Settings(), Release(2, 11))
    assert [file.abi for file, _ in made.host] == [ABI]


def test_what_lies_there_already_is_left_alone(folder: Path, tmp_path: Path, checkout: Path) -> None:
    target = folder / parts.host_name(ABI, MACHINE)
    before = (target / parts.MANIFEST).stat()
    assert not parts.write(host_part(tmp_path / "again.so"), Label(""), checkout, target)
    assert (target / parts.MANIFEST).stat().st_mtime_ns == before.st_mtime_ns
    (target / "kernels-x86_64.so").write_bytes(b"damaged")
    assert parts.write(host_part(tmp_path / "again.so"), Label(""), checkout, target)
    manifest = (target / parts.MANIFEST).read_text(encoding="utf-8")
    (target / parts.MANIFEST).write_text(manifest.replace("12.2.0", "11.4.0"), encoding="utf-8")
    assert parts.write(host_part(tmp_path / "again.so"), Label(""), checkout, target)
    assert (target / parts.MANIFEST).read_text(encoding="utf-8") == manifest
    (target / "stray.so").touch()
    assert parts.write(host_part(tmp_path / "again.so"), Label(""), checkout, target)
    assert not (target / "stray.so").exists()
    assert not parts.write(host_part(tmp_path / "again.so"), Label(""), checkout, target)
    assert sorted(path.name for path in target.parent.iterdir() if path.name.startswith(".")) == []


HOST = f"host-kernels-{MACHINE}"
PTX = "device-cu130/rms_norm.compute_90.ptx.xz"


def drop_a_target(folder: Path) -> None:
    (folder / PTX).unlink()
    path = folder / "device-cu130" / "parts.json"
    kept = [f for f in json.loads(path.read_text())["device"] if f["path"] != "device/rms_norm.compute_90.ptx.xz"]
    change(path, device=kept)


def other_nvrtc(folder: Path) -> None:
    path = folder / "device-cu130" / "parts.json"
    changed = [{**file, "nvrtc": "13.2.86"} for file in json.loads(path.read_text())["device"]]
    change(path, device=changed)


def other_machine(folder: Path) -> None:
    path = folder / HOST / "parts.json"
    change(path, host=[{**file, "machine": "riscv64"} for file in json.loads(path.read_text())["host"]])


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: (f / PTX).write_bytes(b"other"), (PTX, "sha256")),
        (lambda f: (f / PTX).unlink(), (PTX, "No such file")),
        (lambda f: (f / HOST / "kernels-x86_64.so").write_bytes(b"x"), ("kernels-x86_64.so", "sha256")),
        (lambda f: (f / "device-cu130" / "rms_norm.sm_99.cubin.xz").write_bytes(b""), ("sm_99", "does not list")),
        (lambda f: (f / HOST).rename(f / "elsewhere"), (f"{HOST}/parts.json", "tools host --abi torch-table-1")),
        (lambda f: change(f / "device-cu130" / "parts.json", source_digest="0" * 64), ("source digest",)),
        (lambda f: change(f / "device-cu130" / "parts.json", label="cu132"), ("label cu132", "label cu130")),
        (lambda f: change(f / "device-cu130" / "parts.json", commit="abcdef0"), ("commit abcdef0",)),
        (lambda f: change(f / "device-cu130" / "parts.json", version="9.9"), ("version 9.9",)),
        (lambda f: change(f / "device-cu130" / "parts.json", mode="machine"), ("mode machine",)),
        (lambda f: (f / "device-cu130" / "parts.json").write_text("{"), ("parts.json", "tools device --label cu130")),
        (drop_a_target, ("device-cu130/parts.json", "rms_norm compute_90")),
        (other_nvrtc, ("NVRTC 13.2.86", "NVRTC 13.0.88")),
        (other_machine, (f"{HOST}/parts.json", "kernels-x86_64.so for riscv64")),
    ],
)
def test_a_part_that_does_not_fit_is_refused_by_name(
    take: Callable[[str], Made], folder: Path, damage: Callable[[Path], object], named: tuple[str, ...]
) -> None:
    damage(folder)
    with pytest.raises(parts.PartRefused) as refused:
        take("cu130")
    assert all(text in str(refused.value) for text in (*named, "fix     1) python -m tools"))


def test_setup_places_the_parts_and_compiles_nothing(
    folder: Path, tmp_path: Path, checkout: Path, known: matrix.Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiles(*_: object, **__: object) -> None:
        raise AssertionError("something was to be compiled")

    monkeypatch.setattr(aot, "make_host", compiles)
    monkeypatch.setattr(aot, "make_device", compiles)
    monkeypatch.setattr(matrix, "load", lambda _: known)
    monkeypatch.setattr(headers, "pinned", lambda _: tmp_path / "include")
    monkeypatch.setattr(aot, "_copy_headers", lambda *_: None)
    settings = Settings(label=Label("cu130"), parts=str(folder), arch=MACHINE, cache_dir=str(tmp_path / "no cache"))
    # setuptools has put the package and the sources there
    shutil.copytree(checkout / "pkg" / "precast", tmp_path / "lib" / "precast")
    (tmp_path / "lib" / "precast" / "csrc").mkdir()
    aot.stage_wheel(tmp_path / "lib", settings, checkout)
    placed = tmp_path / "lib" / "precast" / "_C"
    info = BuildInfo.from_json((placed / "build_info.json").read_text())
    assert (info.mode, info.label.text) == (BuildMode.RELEASE, "cu130")
    assert (placed.parent / "csrc" / "DIGEST").read_text().strip() == info.source_digest
    for file in (*info.host, *info.device):
        assert sha256((placed / file.path).read_bytes()) == file.sha256
    assert not (tmp_path / "no cache").exists()
