"""Shipped files are read once and refused, by name and before any use, when they are not what the manifest says."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import packing
from precast._load import prebuilt, verdict
from precast._version import __version__
from precast.core import verify
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile
from precast.core.reasons import Rejection
from precast.core.version import Label
from precast.errors import KernelIncompatible
from tests.kit import fakes, odd
from tests.kit import hosts as ex


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def refusal(file: HostFile | DeviceFile) -> str:
    with pytest.raises(verify.Damaged) as caught:
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
        assert refusal(file) == "checksum mismatch"
        path.write_bytes(intact)
        truncate(path)
        assert refusal(file) == f"it has {len(intact) - 1} bytes instead of {len(intact)}"
        path.unlink()
        assert refusal(file) == "missing"


def with_file(c_dir: Path, file: DeviceFile, packed: bytes) -> DeviceFile:
    """A manifest entry whose hash is right for another file."""
    (c_dir / file.path).write_bytes(packed)
    return dataclasses.replace(file, sha256=hashlib.sha256(packed).hexdigest(), bytes=len(packed))


def with_content(c_dir: Path, file: DeviceFile, content: bytes) -> DeviceFile:
    """A manifest entry whose hashes are right for other content: the manifest lies about what the file is."""
    made = with_file(c_dir, file, packing.pack([content], file.target.kind))
    digest = hashlib.sha256(content).hexdigest()
    return dataclasses.replace(made, offset=0, content_bytes=len(content), content_sha256=digest)


def test_a_file_for_another_gpu_than_the_manifest_says_is_refused(c_dir: Path) -> None:
    info = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90), "compute_80": fakes.ptx(80)})
    sass, ptx = info.device
    assert refusal(with_content(c_dir, sass, fakes.cubin(80))) == "it is built for sm_80 instead of sm_90"
    assert "not an ELF file" in refusal(with_content(c_dir, sass, b"text" * 50))
    assert refusal(with_content(c_dir, ptx, fakes.ptx(90))) == "it is built for sm_90 instead of sm_80"
    assert "no .target line" in refusal(with_content(c_dir, ptx, b"text"))


def test_code_for_one_gpu_alone_is_not_taken_for_code_for_all_of_its_kind(c_dir: Path) -> None:
    targets = {"sm_90": fakes.cubin(90), "sm_90a": fakes.cubin(90), "compute_90": fakes.ptx(90)}
    info = fakes.write_installation(c_dir, None, targets)
    by_target = {str(file.target): file for file in info.device}
    alone = bytearray(fakes.cubin(90))
    struct.pack_into("<I", alone, 48, struct.unpack_from("<I", alone, 48)[0] | (0x800 if alone[8] == 7 else 0x8))
    plain, special, ptx = (by_target[name] for name in ("sm_90", "sm_90a", "compute_90"))
    assert refusal(with_content(c_dir, plain, bytes(alone))) == "it is built for sm_90a instead of sm_90"
    assert prebuilt.verified_bytes(with_content(c_dir, special, bytes(alone))) == bytes(alone)
    # NVRTC 13 writes the same header for both, so a plain one may stand under either.
    assert prebuilt.verified_bytes(with_content(c_dir, special, fakes.cubin(90))) == fakes.cubin(90)
    text = fakes.ptx(90).replace(b"sm_90", b"sm_90a")
    assert refusal(with_content(c_dir, ptx, text)) == "it is built for sm_90a instead of sm_90"


@pytest.mark.parametrize("device", [False, True])
def test_a_folder_or_a_failing_disk_is_damage(c_dir: Path, monkeypatch: pytest.MonkeyPatch, device: bool) -> None:
    (file,) = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)}).device
    path = c_dir / file.path
    path.unlink()
    if device:
        path.write_bytes(fakes.cubin(90))

        def read(path: Path, most: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        monkeypatch.setattr(prebuilt.files, "read", read)
        assert refusal(file) == "unreadable: Input/output error"
        with pytest.raises(KernelIncompatible, match="Input/output error"):
            prebuilt.load_build_info()
    else:
        path.mkdir()
        assert refusal(file).startswith("unreadable: ")


def test_a_file_that_does_not_hold_what_the_manifest_says_is_refused(c_dir: Path) -> None:
    (file,) = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)}).device
    packed = packing.pack([fakes.cubin(90)], file.target.kind)
    assert "not an .xz that precast packed" in refusal(with_file(c_dir, file, fakes.cubin(90)))
    assert "ends early" in refusal(with_file(c_dir, file, packed[:-4]))
    assert "3 bytes lie behind the end" in refusal(with_file(c_dir, file, packed + b"abc"))
    endless = packing.pack([bytes(1 << 22)], file.target.kind)
    assert refusal(with_file(c_dir, file, endless)) == "checksum mismatch of the unpacked image"


TWO = {"sm_80": fakes.cubin(80), "sm_90": fakes.cubin(90, 600)}


def test_an_image_is_read_from_the_file_that_it_shares(c_dir: Path) -> None:
    first, second = fakes.write_installation(c_dir, None, TWO).device
    assert first.path == second.path == "device/rms_norm.sm_90+sm_80.cubin.xz"
    assert (first.offset, second.offset) == (0, first.content_bytes) and str(first.target) == "sm_90"
    assert prebuilt.verified_bytes(first) == TWO["sm_90"] and prebuilt.verified_bytes(second) == TWO["sm_80"]


def test_an_image_of_a_shared_file_is_proved_whole_by_its_own_hash(c_dir: Path) -> None:
    first, second = fakes.write_installation(c_dir, None, TWO).device
    for image in (first, second):  # fails if an early stop loses the proof that the image is whole
        lying = dataclasses.replace(image, content_sha256="0" * 64)
        assert refusal(lying) == "checksum mismatch of the unpacked image"
    beyond = dataclasses.replace(second, content_bytes=second.content_bytes + 1)
    said = f"unpacks to {second.end} bytes; the manifest says that the image ends at {second.end + 1}"
    assert refusal(beyond) == said
    shifted = dataclasses.replace(second, offset=second.offset - 1)
    assert refusal(shifted) == "checksum mismatch of the unpacked image"
    flip(c_dir / first.path, 40)
    assert refusal(first) == refusal(second) == "checksum mismatch"


def test_a_shared_file_that_is_cut_behind_an_image_is_refused_for_it_too(c_dir: Path) -> None:
    first, second = fakes.write_installation(c_dir, None, TWO).device
    cut = (c_dir / first.path).read_bytes()[:-40]
    truncate(c_dir / first.path)
    assert refusal(first).startswith("it has ") and refusal(second).startswith("it has ")
    # With an honest hash, what is there of the stream decides: an image is served only if it is whole.
    assert "ends early" in refusal(with_file(c_dir, second, cut))


def test_nothing_is_unpacked_before_its_hash_is_right(c_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)}).device
    packed = (c_dir / file.path).read_bytes()
    seen: list[bytes] = []
    monkeypatch.setattr(packing, "image", lambda packed, *_: seen.append(packed) or fakes.cubin(90))
    flip(c_dir / file.path, 40)
    assert refusal(file) == "checksum mismatch"
    truncate(c_dir / file.path)
    assert "bytes" in refusal(file) and seen == []
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
        assert " install --force-reinstall" in message and "export PRECAST_JIT=jit" in message


@pytest.mark.parametrize("kind", odd.ODD)
def test_an_odd_file_in_the_place_of_the_manifest_is_refused_by_name(c_dir: Path, kind: str) -> None:
    odd.put(kind, c_dir / "build_info.json")
    with odd.no_hang(), pytest.raises(KernelIncompatible, match=r"build_info\.json"):
        prebuilt.load_build_info()


@pytest.mark.compiler
@pytest.mark.parametrize("kind", odd.ODD)
def test_an_odd_file_in_the_place_of_a_shipped_one_is_damage(c_dir: Path, toy_library: Path, kind: str) -> None:
    info = fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    for file in (*info.host, *info.device):
        odd.put(kind, c_dir / file.path)
        with odd.no_hang():
            said = refusal(file)
        assert said.endswith("not a regular file") or said == f"it has {odd.HUGE} bytes instead of {file.bytes}"


def judged(**changes: object) -> Rejection | None:
    """What is said of an installation whose manifest differs in this from one of today."""
    info = fakes.write_installation(prebuilt.C_DIR, None, {"sm_90": fakes.cubin(90)})
    return prebuilt.judged(ex.host(), dataclasses.replace(info, **changes)).stale


def stale_fix(stale: Rejection, **changes: object) -> str:
    info = fakes.write_installation(prebuilt.C_DIR, None, {"sm_90": fakes.cubin(90)})
    host = dataclasses.replace(ex.host(installer=None), stale=stale)
    return verdict.stale_fix(host, dataclasses.replace(info, **changes), Settings())


@pytest.fixture
def _fresh(c_dir: Path) -> Iterator[None]:
    prebuilt._sources_here.cache_clear()
    yield
    prebuilt._sources_here.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_files_of_this_very_code_are_not_stale() -> None:
    assert judged() is None
    pure = BuildInfo("9.9.9", Label(""), BuildMode.PURE, None, False, "0" * 64)
    assert prebuilt.judged(ex.host(), pure).stale is None, "it has no files"
    assert prebuilt.judged(ex.host(), None).stale is None


@pytest.mark.usefixtures("_fresh")
def test_files_of_another_version_are_stale_and_a_checkout_is_built_from() -> None:
    stale = judged(version="9.9.9")
    assert stale is not None
    assert (stale.needed, stale.found) == (f"files of precast {__version__}", "those of precast 9.9.9")
    checkout = Path(__file__).resolve().parents[3]
    fix = stale_fix(stale, version="9.9.9")
    assert fix.startswith("CUDA_EXT=1 ") and fix.endswith(f" {checkout}")


@pytest.mark.usefixtures("_fresh")
def test_files_of_other_sources_are_stale() -> None:
    stale = judged(source_digest="0" * 64)
    assert stale is not None and stale.found == "those of 000000000000"
    assert stale.needed == f"files of the sources {fakes.sources_digest()[:12]}"


@pytest.mark.usefixtures("_fresh")
def test_the_digest_that_a_wheel_states_is_read_instead_of_its_sources(
    c_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_all(*_: object) -> str:
        raise AssertionError("a first call reads no sources")

    monkeypatch.setattr("precast._builder.sources.source_digest", read_all)
    (c_dir.parent / "csrc").mkdir()
    (c_dir.parent / "csrc" / "DIGEST").write_text("7" * 64 + "\n")
    info = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)})
    assert prebuilt.judged(ex.host(), dataclasses.replace(info, source_digest="7" * 64)).stale is None


@pytest.mark.usefixtures("_fresh")
def test_the_fix_for_a_wheel_installs_the_version_of_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("precast._load.stale._PACKAGE", tmp_path / "lib" / "precast")
    stale = judged(version="9.9.9", index_url=ex.INDEX)
    assert stale is not None
    fix = stale_fix(stale, version="9.9.9", index_url=ex.INDEX)
    assert fix.endswith(ex.from_index("cu121", __version__).removeprefix("pip"))


@pytest.mark.usefixtures("_fresh")
def test_a_process_that_outlives_an_upgrade_is_told_to_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert judged() is None
    package = tmp_path / "lib" / "precast"
    package.mkdir(parents=True)
    (package / "_version.py").write_text('__version__ = "9.9.9"\n')
    monkeypatch.setattr("precast._load.stale._PACKAGE", package)
    monkeypatch.setattr("precast._builder.sources.csrc_candidates", lambda: (package / "csrc", package / "csrc"))
    stale = judged(version="9.9.9", source_digest="7" * 64)
    assert stale is not None and stale_fix(stale, version="9.9.9") == "restart this process"
    assert "upgraded while this process ran" in stale.found
