"""The audit refuses wheels that were tampered with, whether or not RECORD was brought in line afterwards."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from precast._build import matrix
from precast._version import __version__
from tools import audit as tools_audit

from .conftest import CHECKOUT

pytestmark = [pytest.mark.wheel, pytest.mark.compiler]

MATRIX = matrix.load(CHECKOUT / "matrix.toml")
HOST = "precast/_C/host/torch-stable-2.10.so"
CUBIN = "precast/_C/device/rms_norm.sm_90.cubin"
PTX = "precast/_C/device/rms_norm.compute_90.ptx"
MANIFEST = "precast/_C/build_info.json"
INFO = f"precast-{__version__}+cu130.dist-info"

Files = dict[str, bytes]


def rewritten(wheel: Path, folder: Path, change: Callable[[Files], Any], *, honest_record: bool = True) -> Path:
    """A copy of a wheel with its files changed; ``honest_record`` writes the RECORD such a wheel would have."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    change(files)
    record = f"{INFO}/RECORD"
    if honest_record and record in files:
        rows = []
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{record},,\n" if name == record else f'"{name}",sha256={digest},{len(data)}\n')
        files[record] = "".join(rows).encode()
    copy = folder / wheel.name
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return copy


def edit(path: str, value: object) -> Callable[[Files], None]:
    """Change one entry of the manifest, named as ``host.0.glibc``."""

    def change(files: Files) -> None:
        document = json.loads(files[MANIFEST])
        *outer, key = path.split(".")
        inner = document
        for part in outer:
            inner = inner[int(part) if part.isdigit() else part]
        inner[key] = value
        files[MANIFEST] = json.dumps(document).encode()

    return change


def replace(name: str, data: Callable[[bytes], bytes]) -> Callable[[Files], None]:
    """Change a file and give the manifest its new hash and size: a lie with every hash in order."""

    def change(files: Files) -> None:
        files[name] = data(files[name])
        document = json.loads(files[MANIFEST])
        for entry in (*document["host"], *document["device"]):
            if f"precast/_C/{entry['path']}" == name:
                entry["sha256"] = hashlib.sha256(files[name]).hexdigest()
                entry["bytes"] = len(files[name])
        files[MANIFEST] = json.dumps(document).encode()

    return change


def patched(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def patch(data: bytes) -> bytes:
        assert old in data and len(old) == len(new)
        return data.replace(old, new)

    return patch


def at(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :]


def drop_device(target: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        document = json.loads(files[MANIFEST])
        document["device"] = [entry for entry in document["device"] if entry["target"] != target]
        files[MANIFEST] = json.dumps(document).encode()
        for name in [name for name in files if f".{target}." in name]:
            del files[name]

    return change


TAMPERED: dict[str, tuple[Callable[[Files], Any], str]] = {
    "a flipped bit in a cubin": (lambda f: f.update({CUBIN: at(5000, b"\xff")(f[CUBIN])}), "sha256"),
    "a cubin cut short": (replace(CUBIN, lambda data: data[:3000]), "device"),
    "a cubin for another GPU": (replace(CUBIN, at(49, b"\x50")), "target"),
    "a cubin of another layout": (replace(CUBIN, at(7, b"\x33\x07")), "target"),
    "PTX for another GPU": (replace(PTX, patched(b".target sm_90", b".target sm_80")), "target"),
    "PTX of another ISA": (replace(PTX, patched(b".version 9.0", b".version 8.1")), "ptx isa"),
    "PTX of another compiler": (replace(PTX, patched(b"V13.0.88", b"V13.0.48")), "nvrtc"),
    "PTX without a kernel": (replace(PTX, patched(b".entry rms_norm_f32_v4", b".entri rms_norm_f32_v4")), "kernels"),
    "a library cut short": (replace(HOST, lambda data: data[:9000]), "elf"),
    "a library for another machine": (replace(HOST, at(18, b"\xb7")), "machine"),
    "a library that needs another torch": (replace(HOST, patched(b"libtorch_cpu.so", b"libtorch_gpu.so")), "needed"),
    "a library of another glibc": (replace(HOST, patched(b"GLIBC_2.14\0", b"GLIBC_2.99\0")), "glibc"),
    "a library with a stray export": (replace(HOST, patched(b"precast_refuse\0", b"postcast_refus\0")), "exports"),
    "a library with a build path": (replace(HOST, lambda data: data + b"\0/home/me/csrc/x.cpp\0"), "paths"),
    "a library without a family": (edit("host.0.families", ["rms_norm"]), "families"),
    "fewer CPU levels than claimed": (edit("host.0.cpu_levels", ["baseline", "avx2"]), "cpu levels"),
    "another ceiling than claimed": (edit("host.0.glibcxx", "3.4.11"), "glibcxx"),
    "another library needed than claimed": (edit("host.0.needed", ["libtorch_cpu.so"]), "needed"),
    "a debug build that is none": (edit("host.0.debug", True), "debug"),
    "another driver than the compiler's": (edit("device.0.min_driver", "12.0"), "driver"),
    "another NVRTC than the label's": (edit("device.0.nvrtc", "13.0.48"), "nvrtc"),
    "another compiler than the comment's": (
        edit("compilers", [{"name": "g++", "version": "4.8.5"}, {"name": "nvrtc", "version": "13.0.88"}]),
        "compiler",
    ),
    "a target of the label missing": (drop_device("sm_80"), "complete"),
    "a file gone": (lambda f: f.pop(CUBIN), "files"),
    "a file nobody lists": (lambda f: f.update({"precast/_C/device/x.sm_90.cubin": b"x"}), "files"),
    "a grafted library": (lambda f: f.update({"precast.libs/libgomp.so.1": b"x"}), "grafted"),
    "a library in a stray place": (lambda f: f.update({"precast/ops/x.so": b"x"}), "strays"),
    "an edited source": (lambda f: f.update({"precast/csrc/common/api.cpp": b"// mine"}), "sources"),
    "an edited header": (
        lambda f: f.update({"precast/csrc/torch_stable/include/torch/csrc/stable/c/shim.h": b"// mine"}),
        "headers",
    ),
    "no manifest": (lambda f: f.pop(MANIFEST), "manifest"),
    "a manifest with an unknown key": (edit("extra", 1), "manifest"),
    "another label": (edit("label", "cu121"), "version"),
    "another version": (edit("version", "9.9"), "version"),
    "a pure wheel with binaries": (edit("mode", "pure"), "manifest"),
    "marked as pure": (
        lambda f: f.update({f"{INFO}/WHEEL": f[f"{INFO}/WHEEL"].replace(b"Purelib: false", b"Purelib: true")}),
        "purelib",
    ),
    "another tag inside": (
        lambda f: f.update({f"{INFO}/WHEEL": f[f"{INFO}/WHEEL"].replace(b"py3-none", b"cp311-cp311")}),
        "tag",
    ),
    "a ceiling on torch": (
        lambda f: f.update({f"{INFO}/METADATA": f[f"{INFO}/METADATA"].replace(b"torch>=2.4.1", b"torch<2.16")}),
        "metadata",
    ),
    "too large": (lambda f: f.update({"precast/data": hashlib.shake_256(b"x").digest(6_000_000)}), "size"),
}


def checks(path: Path) -> set[str]:
    return {violation.check for violation in tools_audit.audit(path, MATRIX, repaired=True)}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_wheel_is_refused(repaired: Mapping[str, Path], tmp_path: Path, name: str) -> None:
    change, check = TAMPERED[name]
    assert check in checks(rewritten(repaired["cu130"], tmp_path, change))


def test_an_untouched_copy_passes(repaired: Mapping[str, Path], tmp_path: Path) -> None:
    assert checks(rewritten(repaired["cu130"], tmp_path, lambda files: None)) == set()


def test_a_changed_file_contradicts_its_record(repaired: Mapping[str, Path], tmp_path: Path) -> None:
    def change(files: Files) -> None:
        files["precast/errors.py"] += b"\n"
        del files["precast/py.typed"]
        files["precast/new.py"] = b""

    wheel = rewritten(repaired["cu130"], tmp_path, change, honest_record=False)
    found = {v.where for v in tools_audit.audit(wheel, MATRIX, repaired=True) if v.check == "record"}
    assert found == {"precast/errors.py", "precast/py.typed", "precast/new.py"}


def test_an_unrepaired_wheel_is_refused_by_its_tag(
    built: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools_audit.main([str(built["cu130"])]) == 1
    assert "manylinux_2_28" in capsys.readouterr().out
    assert tools_audit.main(["--unrepaired", str(built["cu130"])]) == 0


def test_what_is_no_wheel_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precast-0.1.0-py3-none-any.whl").write_bytes(b"PK\x03\x04 cut short")
    assert tools_audit.main([str(tmp_path / "precast-0.1.0-py3-none-any.whl")]) == 2
    assert "not a zip file" in capsys.readouterr().err
