"""One accepted input for each target: what fuzzing starts from."""

from __future__ import annotations

import ctypes.util
import sys
import tempfile
from pathlib import Path

from precast._build import packing
from precast._build.entry import BuildKey, Meta
from tests.unit.load import fakes


def manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "library.so").write_bytes(b"library")
        info = fakes.write_installation(path / "_C", path / "library.so", {"sm_90": b"cubin", "compute_90": b"ptx"})
        return info.to_json().encode()


def meta() -> bytes:
    key = BuildKey("family", {"schema": 1, "sources": {"csrc/a.cpp": "00"}, "options": ["-O3"]})
    return Meta.of(key, "out.so", b"payload", 1.5).to_json().encode()


def shared_object() -> bytes:
    """Any small library of this machine: an extension module of Python, or the linker's own libdl."""
    folders = [Path(path) for path in sys.path if path.endswith("lib-dynload")]
    modules = sorted((path for folder in folders for path in folder.glob("*.so")), key=lambda path: path.stat().st_size)
    named = ctypes.util.find_library("dl")
    return (modules[0] if modules else Path("/lib") / str(named)).read_bytes()


def cubin() -> bytes:
    return fakes.cubin(90)


def packed() -> bytes:
    return packing.pack(fakes.cubin(90))


SEEDS = {"manifest": manifest, "meta": meta, "shared_object": shared_object, "cubin": cubin, "packed": packed}
