"""What reads files that somebody else may have made, each with the one error it may raise and what it must not accept.

A target takes bytes and returns whether they were accepted. Anything but the documented error is a crash; accepting
what does not say of itself what is reported is a lie, and an AssertionError.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precast._abi.settings import VARIABLES, Settings
from precast._builder import cache_archive, elf, matrix, packing, roots
from precast._builder.cache import Cache
from precast._builder.entry import BuildKey, Meta, NotWhole
from precast.core import gpus
from precast.core.manifest import BuildInfo, ManifestError
from precast.errors import KernelError

ROOT = Path(__file__).resolve().parents[2]
PACKED_BYTES = 512  # of the image in the seed
SETTINGS = tuple(variable.name for variable in VARIABLES)
INPUTS = {"kind": "device", "target": "sm_90"}
SEED_MEMBERS = ((f"rms_norm/{BuildKey('rms_norm', INPUTS).digest[:16]}/rms_norm.cubin", b"code"),)
WHEEL = "precast-0.1.0+cu121-py3-none-manylinux_2_28_x86_64.whl"


def manifest(data: bytes) -> bool:
    """``build_info.json``. What is accepted is printed and read again as the same value."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # the loader reports this before the parser is asked
        return False
    try:
        info = BuildInfo.from_json(text)
    except ManifestError:
        return False
    assert BuildInfo.from_json(info.to_json()) == info
    files = [*info.host, *info.device]
    assert not [file for file in files if file.path.startswith("/") or ".." in file.path.split("/")], "it leaves _C"
    assert len({file.path for file in files}) == len(files), "two claims about one file"
    return True


def meta(data: bytes) -> bool:
    """``meta.json`` of the cache. What is accepted names a file beside it, and the key of its own inputs."""
    try:
        found = Meta.from_json(data)
    except NotWhole:
        return False
    assert found.key == BuildKey("", found.inputs).digest, "the key of something else"
    assert "/" not in found.payload and found.payload not in {".", "..", "meta.json", "build.log"}
    assert Meta.from_json(found.to_json().encode()) == found
    assert json.loads(data)["sha256"] == found.sha256
    return True


def archive(data: bytes) -> bool:
    """What import-cache is given: an archive byte by byte, or, as headers have checksums, the manifest of a good one.

    What is accepted is in the cache afterwards, whole; what is refused changes nothing.
    """
    folder = work("archive")
    root = folder / "cache"
    shutil.rmtree(root, ignore_errors=True)
    packed = data.startswith((b"\x1f\x8b", b"\xfd7zXZ"))
    (folder / "cache.tar").write_bytes(data if packed or b"ustar" in data[:512] else with_manifest(data))
    try:
        added, known = cache_archive.import_cache(folder / "cache.tar", Cache(root))
    except KernelError:
        assert not list(root.glob("v1/[a-zA-Z]*")), "a refused archive has changed the cache"
        return False
    assert not known and {path.name for path in folder.iterdir()} <= {"cache", "cache.tar"}, "it left the cache"
    for item in added:
        found = Cache(root).lookup(item.key)
        assert found is not None and found.name == item.payload
    return True


def with_manifest(text: bytes) -> bytes:
    """An archive with this manifest, and the members of the seed."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in ((cache_archive.MANIFEST, text), *SEED_MEMBERS):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def wheel(data: bytes) -> bool:
    """What the audit is given: a wheel byte by byte, or, as they have checksums, the files inside a good one.

    Bytes that begin as a zip are the wheel. Else the first is a file of the seed, and the rest is its content.
    """
    from precast._builder.wheel_file import write_wheel
    from tools.guards import judge_wheel
    from tools.guards.subject import Asked
    from tools.shared.wheel import NotAWheel, read_wheel
    from tools.verbs.audit import as_json

    path = work("wheel") / WHEEL
    if data[:2] == b"PK":
        path.write_bytes(data)
    else:
        files = dict(seed_wheel())
        name = sorted(files)[data[0] % len(files)] if data else min(files)
        write_wheel(path, "precast-0.1.0+cu121.dist-info", files | {name: data[1:]}, 1_700_000_000)
    try:
        read = read_wheel(path)
    except NotAWheel:
        return False
    assert sum(map(len, read.files.values())) <= 33 * len(data) + (65 << 20), "it unpacked a bomb"
    results = judge_wheel(read, known_matrix(), Asked())
    json.loads(as_json([("wheel", results)]))
    return True


def settings(data: bytes) -> bool:
    """The environment, one value for each variable. What is accepted is either not used, or used or refused by name."""
    values = [part.decode("utf-8", "surrogateescape") for part in data.split(b"\0")]
    env = {name: value for name, value in zip(SETTINGS, values, strict=False) if value}
    found, refusal = refused(lambda: Settings.from_env(env))
    if found is None:
        assert any(name in refusal for name in SETTINGS), f"no variable is named: {refusal}"
        return False
    assert Settings.from_env(env) == found
    uses: list[Callable[[], Any]] = [
        found.targets,
        lambda: roots.default_root(found) if found.cache_dir or found.xdg_cache_home or found.home else None,
        lambda: roots.search_path(found),
        lambda: known_matrix().label(found.label) if found.label is not None else None,
        lambda: known_matrix().hosts(found.arch or "x86_64", found.only_torch),
        lambda: gpus.select_visible(found.visible_devices, ["GPU-0aaa", "GPU-1aaa"]),
    ]
    assert "a refusal without a word" not in [refusal for _, refusal in map(refused, uses)]
    return True


def refused(use: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, or the words of its one documented refusal."""
    try:
        return use(), ""
    except (KernelError, ValueError) as error:
        return None, str(error) or "a refusal without a word"


def shared_object(data: bytes) -> bool:
    """The dynamic section of a library. What is reported as needed or exported is spelled out in the file."""
    try:
        info = elf.read_shared_object(data)
    except elf.ElfError:
        return False
    assert data[:4] == b"\x7fELF"
    for name in (*info.needed, *info.exported):
        assert name.encode() in data or "\\x" in name, f"{name!r} is nowhere in the file"  # \\x: a byte that is no text
    return True


def cubin(data: bytes) -> bool:
    """The header of device code. What is accepted has one of the two known layouts, and the target that it says."""
    try:
        info = elf.read_cubin(data)
    except elf.ElfError:
        return False
    assert data[:4] == b"\x7fELF" and (data[7], data[8]) in {(51, 7), (65, 8)}, "a layout that nobody knows"
    flags = int.from_bytes(data[48:52], "little")
    assert info.target.capability.number == (flags & 0xFF if data[8] == 7 else flags >> 8 & 0xFF)
    return True


def packed(data: bytes) -> bool:
    """Device code as a wheel holds it. What is accepted is a whole .xz of the size that was asked for."""
    try:
        image = packing.unpack(data, PACKED_BYTES)
    except packing.NotPacked:
        return False
    assert len(image) == PACKED_BYTES and lzma.decompress(data) == image
    return True


@functools.cache
def work(name: str) -> Path:
    """A folder of this process for one target, in memory where there is such a place."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="precast-fuzz-", dir=shm if shm.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def seed_wheel() -> dict[str, bytes]:
    """The files of the wheel that the target alters."""
    from tests.fuzz import seeds
    from tools.shared.wheel import read_wheel

    path = work("seed") / WHEEL
    path.write_bytes(seeds.wheel())
    return dict(read_wheel(path).files)


@functools.cache
def known_matrix() -> matrix.Matrix:
    """The matrix of this checkout."""
    return matrix.load(ROOT / "matrix.toml")


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "manifest": manifest,
    "meta": meta,
    "archive": archive,
    "wheel": wheel,
    "settings": settings,
    "shared_object": shared_object,
    "cubin": cubin,
    "packed": packed,
}
