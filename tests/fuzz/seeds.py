"""One accepted input for each target: what fuzzing starts from."""

from __future__ import annotations

import ctypes.util
import sys
import tempfile
from pathlib import Path

from precast._builder import cache_archive, cache_tools, packing
from precast._builder.cache import Cache
from precast._builder.entry import BuildKey, Meta
from precast.core.capability import TargetKind
from tests.fuzz.targets import INPUTS, SETTINGS, WHEEL
from tests.kit import fakes


def manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "library.so").write_bytes(b"library")
        info = fakes.write_installation(path / "_C", path / "library.so", {"sm_90": b"cubin", "compute_90": b"ptx"})
        return info.to_json().encode()


def meta() -> bytes:
    key = BuildKey("family", {"schema": 1, "sources": {"csrc/a.cpp": "00"}, "options": ["-O3"]})
    return Meta.of(key, "out.so", b"payload", 1.5).to_json().encode()


def archive() -> bytes:
    """What export-cache writes of a cache with one entry."""
    with tempfile.TemporaryDirectory() as folder:
        cache, payload, out = Cache(Path(folder, "cache")), Path(folder, "rms_norm.cubin"), Path(folder, "cache.tar")
        payload.write_bytes(b"code")
        cache.store(BuildKey("rms_norm", INPUTS), payload, 0.5)
        cache_archive.export_cache(cache_tools.read_entries(cache.root), out)
        return out.read_bytes()


def wheel() -> bytes:
    """A released wheel with a library and device code, as it lies on disk."""
    from precast._builder.wheel_file import write_wheel
    from tools.shared.wheel import read_wheel

    with tempfile.TemporaryDirectory() as folder:
        root, made = Path(folder), Path(folder, WHEEL)
        (root / "library.so").write_bytes(shared_object())
        images = {"sm_90": fakes.cubin(90), "compute_90": fakes.ptx(90)}
        fakes.write_installation(root / "_C", root / "library.so", images)
        there = [path for path in (root / "_C").rglob("*") if path.is_file()]
        files = {f"precast/_C/{path.relative_to(root / '_C').as_posix()}": path.read_bytes() for path in there}
        said = "Metadata-Version: 2.4\nName: precast\nVersion: 0.1.0+cu121\nRequires-Dist: torch>=2.4.1\n"
        dist_info = "precast-0.1.0+cu121.dist-info"
        files[f"{dist_info}/METADATA"] = said.encode()
        files[f"{dist_info}/WHEEL"] = b"Wheel-Version: 1.0\nTag: py3-none-manylinux_2_28_x86_64\n"
        files[f"{dist_info}/sboms/precast.cdx.json"] = b'{"bomFormat": "CycloneDX", "specVersion": "1.6"}'
        write_wheel(made, dist_info, files, 1_700_000_000)
        assert read_wheel(made).version == "0.1.0+cu121"
        return made.read_bytes()


def settings() -> bytes:
    """Every variable with a value that it takes, in the order of the target."""
    values = {
        "PRECAST_JIT": "aot",
        "PRECAST_CUDA_ARCH_LIST": "8.0;9.0a+PTX sm_100f",
        "TORCH_CUDA_ARCH_LIST": "Hopper",
        "PRECAST_JIT_WAIT": "60",
        "MAX_JOBS": "2",
        "PRECAST_CPU_LEVEL": "avx2",
        "PRECAST_LABEL": "cu130",
        "PRECAST_ONLY_TORCH": "2.6",
        "PRECAST_ARCH": "x86_64",
        "CUDA_VISIBLE_DEVICES": "1,GPU-0aaa,0",
    }
    return b"\0".join(values.get(name, "").encode() for name in SETTINGS)


def shared_object() -> bytes:
    """Any small library of this machine: an extension module of Python, or the linker's own libdl."""
    folders = [Path(path) for path in sys.path if path.endswith("lib-dynload")]
    modules = sorted((path for folder in folders for path in folder.glob("*.so")), key=lambda path: path.stat().st_size)
    named = ctypes.util.find_library("dl")
    return (modules[0] if modules else Path("/lib") / str(named)).read_bytes()


def cubin() -> bytes:
    return fakes.cubin(90)


def packed() -> bytes:
    return packing.pack([fakes.cubin(90)], TargetKind.SASS)


SEEDS = {
    "manifest": manifest,
    "meta": meta,
    "archive": archive,
    "wheel": wheel,
    "settings": settings,
    "shared_object": shared_object,
    "cubin": cubin,
    "packed": packed,
}
