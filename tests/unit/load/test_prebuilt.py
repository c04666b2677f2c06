"""Shipped files are read once and refused, by name and before any use, when they are not what the manifest says."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from precast._abi.build_info import DeviceFile, HostFile
from precast._build import packing
from precast._load import prebuilt
from precast.errors import KernelIncompatible
from tests.unit.load import fakes


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def refusal(file: HostFile | DeviceFile) -> str:
    with pytest.raises(prebuilt.Damaged) as caught:
        prebuilt.verified_bytes(file)
    return str(caught.value)


def test_no_manifest_is_no_error(c_dir: Path) -> None:
    assert prebuilt.load_build_info() is None


@pytest.mark.compiler
def test_intact_files_give_their_bytes(c_dir: Path, toy_library: Path) -> None:
    info = fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90), "compute_80": fakes.ptx(80)})
    assert prebuilt.load_build_info() == info
    assert prebuilt.verified_bytes(info.host[0]) == toy_library.read_bytes()
    assert [prebuilt.verified_bytes(file) for file in info.device] == [fakes.cubin(90), fakes.ptx(80)]


@pytest.mark.compiler
def test_a_damaged_file_of_every_kind_is_refused(c_dir: Path, toy_library: Path) -> None:
    info = fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90), "compute_80": fakes.ptx(80)})
    for file in (*info.host, *info.device):
        path = c_dir / file.path
        intact = path.read_bytes()
        flip(path, len(intact) // 2)
        assert "sha256" in refusal(file)
        path.write_bytes(intact)
        truncate(path)
        assert refusal(file) == f"{len(intact) - 1} bytes, {len(intact)} in the manifest"
        path.unlink()
        assert refusal(file) == "missing"


def with_file(c_dir: Path, file: DeviceFile, packed: bytes) -> DeviceFile:
    """A manifest entry whose hash is right for another file."""
    (c_dir / file.path).write_bytes(packed)
    return dataclasses.replace(file, sha256=hashlib.sha256(packed).hexdigest(), bytes=len(packed))


def with_content(c_dir: Path, file: DeviceFile, content: bytes) -> DeviceFile:
    """A manifest entry whose hash is right for other content: the manifest lies about what the file is."""
    return dataclasses.replace(with_file(c_dir, file, packing.pack(content)), content_bytes=len(content))


def test_a_file_for_another_gpu_than_the_manifest_says_is_refused(c_dir: Path) -> None:
    info = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90), "compute_80": fakes.ptx(80)})
    sass, ptx = info.device
    assert refusal(with_content(c_dir, sass, fakes.cubin(80))) == "built for sm_80, sm_90 in the manifest"
    assert "not an ELF file" in refusal(with_content(c_dir, sass, b"text" * 50))
    assert refusal(with_content(c_dir, ptx, fakes.ptx(90))) == "built for sm_90, sm_80 in the manifest"
    assert "no .target line" in refusal(with_content(c_dir, ptx, b"text"))


def test_a_file_that_does_not_hold_what_the_manifest_says_is_refused(c_dir: Path) -> None:
    (file,) = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)}).device
    assert "not an .xz of ours" in refusal(with_file(c_dir, file, fakes.cubin(90)))
    assert "ends early" in refusal(with_file(c_dir, file, packing.pack(fakes.cubin(90))[:-4]))
    endless = with_file(c_dir, file, packing.pack(bytes(1 << 22)))
    assert refusal(endless) == f"unpacks to more than the {file.content_bytes} bytes in the manifest"


def test_nothing_is_unpacked_before_its_hash_is_right(c_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)}).device
    seen: list[bytes] = []
    monkeypatch.setattr(packing, "unpack", lambda packed, size: seen.append(packed) or fakes.cubin(90))
    flip(c_dir / file.path, 40)
    assert "sha256" in refusal(file)
    truncate(c_dir / file.path)
    assert "bytes" in refusal(file) and seen == []
    packed = packing.pack(fakes.cubin(90))
    prebuilt.verified_bytes(with_file(c_dir, file, packed))
    assert seen == [packed]


def test_a_damaged_manifest_is_refused_by_name_with_the_way_out(c_dir: Path) -> None:
    fakes.write_installation(c_dir, None)
    path = c_dir / "build_info.json"
    document = json.loads(path.read_text())
    document["commit"] = "not a commit"
    for content, found in (
        (path.read_bytes()[:-20], "build_info.json: "),
        (b"\xff\xfe", "utf-8"),
        (json.dumps(document).encode(), "$.commit"),
        (b"{}", "$.schema"),
    ):
        path.write_bytes(content)
        with pytest.raises(KernelIncompatible) as caught:
            prebuilt.load_build_info()
        message = str(caught.value)
        assert str(path) in message and found in message
        assert "pip install --force-reinstall" in message and "PRECAST_JIT=jit" in message


def test_a_manifest_that_cannot_be_read_is_refused_by_name(c_dir: Path) -> None:
    (c_dir / "build_info.json").mkdir()
    with pytest.raises(KernelIncompatible, match=r"build_info\.json"):
        prebuilt.load_build_info()
