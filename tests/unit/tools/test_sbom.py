"""The bill of materials of wheels that are not built here: two NVRTCs, the classic ABI, another machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from precast._builder import headers, matrix
from precast._builder.wheel_file import moment_of, write_wheel
from precast.core.capability import GpuTarget
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile
from precast.core.torch_abi import parse_torch_abi
from precast.core.version import CudaVersion, Label, Release
from tools.guards.sbom import check_sbom
from tools.guards.subject import Asked, Audited
from tools.shared.sbom import NAME, sbom
from tools.shared.wheel import read_wheel

MATRIX = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
EPOCH = 1_700_000_000
DIST_INFO = "precast-1.0.dist-info"


def host(abi: str) -> HostFile:
    return HostFile(
        path=f"host/{abi}.so",
        sha256="1" * 64,
        bytes=1,
        abi=parse_torch_abi(abi),
        machine="aarch64",
        needed=("libtorch_cpu.so",),
        glibc=Release(2, 17),
        glibcxx="3.4.21",
        cpu_levels=("baseline",),
        families=("rms_norm",),
    )


def device(target: str, nvrtc: str) -> DeviceFile:
    path = f"device/rms_norm.{target}.cubin.xz"
    return DeviceFile(path, "2" * 64, 1, "rms_norm", GpuTarget.parse(target), nvrtc, CudaVersion(12, 0), 0, 9, "e" * 64)


INFO = BuildInfo(
    version="1.0",
    label=Label(""),
    mode=BuildMode.RELEASE,
    commit=None,
    dirty=False,
    source_digest="3" * 64,
    compilers=(("clang++", "16.0.6"), ("nvrtc", "12.8.93"), ("nvrtc", "13.0.88")),
    host=(host("torch-table-1"), host("torch-2.6-cxx0"), host("torch-2.6-cxx1"), host("torch-2.9-cxx1")),
    device=(device("sm_90", "12.8.93"), device("sm_110", "13.0.88")),
)


def of(folder: Path, document: bytes, *shipped: str) -> Audited:
    """A wheel with a document and, by name alone, files."""
    folder.mkdir(exist_ok=True)
    path = folder / "precast-1.0-py3-none-manylinux_2_28_aarch64.whl"
    write_wheel(path, DIST_INFO, {**dict.fromkeys(shipped, b""), f"{DIST_INFO}/{NAME}": document}, EPOCH)
    return Audited(read_wheel(path), INFO, MATRIX, {}, Asked())


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    document = sbom(INFO, headers.load_pins(), MATRIX, moment_of(EPOCH))
    return of(tmp_path, document, f"precast/csrc/{headers.FOLDER}/LICENSE")


def test_every_compiler_and_every_torch_is_listed_once(audited: Audited) -> None:
    assert list(check_sbom(audited)) == []
    document = json.loads(audited.wheel.files[f"{DIST_INFO}/{NAME}"])
    excluded = [entry for entry in document["components"] if entry.get("scope") == "excluded"]
    assert {entry["purl"] for entry in excluded if "purl" in entry} == {
        "pkg:pypi/nvidia-cuda-nvrtc-cu12@12.8.93",
        "pkg:pypi/nvidia-cuda-nvrtc@13.0.88",
        "pkg:pypi/torch@2.6.0",
        "pkg:pypi/torch@2.9.1",
    }


def test_the_same_wheel_has_the_same_document(audited: Audited) -> None:
    again = sbom(INFO, headers.load_pins(), MATRIX, moment_of(EPOCH))
    assert again == audited.wheel.files[f"{DIST_INFO}/{NAME}"]
    assert b"2023-11-14T22:13:20+00:00" in again


def test_its_moment_is_that_of_the_first_file_of_the_archive(audited: Audited) -> None:
    first, *rest = audited.wheel.entries
    later = replace(first, moment=(2023, 11, 14, 22, 13, 22))
    after = replace(audited, wheel=replace(audited.wheel, entries=(first, later, *rest)))
    assert [v.reason for v in check_sbom(after)] == [v.reason for v in check_sbom(audited)] == []
    before = replace(audited, wheel=replace(audited.wheel, entries=(later, first, *rest)))
    assert [v.reason for v in check_sbom(before)] == ["timestamp"]


def test_it_is_held_against_the_manifest(audited: Audited) -> None:
    found = {v.candidate for v in check_sbom(replace(audited, manifest=replace(INFO, host=INFO.host[:1])))}
    assert found == {f"precast/_C/{file.path}" for file in INFO.host[1:]} | {
        "pkg:pypi/torch@2.6.0",
        "pkg:pypi/torch@2.9.1",
    }


def test_headers_are_listed_where_the_wheel_has_them(audited: Audited, tmp_path: Path) -> None:
    document = sbom(INFO, None, MATRIX, moment_of(EPOCH))
    assert b"torch_stable" not in document
    assert [v.found for v in check_sbom(of(tmp_path / "none", document))] == []
    with_headers = audited.wheel.files[f"{DIST_INFO}/{NAME}"]
    assert {v.found for v in check_sbom(of(tmp_path / "claimed", with_headers))} == {"listed"}
