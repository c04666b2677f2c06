"""The audit of somebody else's wheel refuses each lie it can tell, and passes what was built."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from precast.build import __main__ as build_main
from precast.build import audit
from precast.errors import KernelError
from tests.kit import fakes, spawn

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

MANIFEST = "{name}/_C/build_info.json"
Files = dict[str, bytes]


def test_what_was_built_passes(bound_wheel: Path, free_wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_main.main(["--audit", str(bound_wheel), str(free_wheel)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and all(
        "passed: 1 manifests, 1 libraries, 1 imported here, 0 images, 0 violations" in line for line in said
    )


def claim(**lies: object) -> Callable[[Files, str], None]:
    """Let the manifest say something else of its library."""

    def change(files: Files, name: str) -> None:
        document = json.loads(files[MANIFEST.format(name=name)])
        document["host"][0] |= lies
        files[MANIFEST.format(name=name)] = json.dumps(document).encode()

    return change


def damage(files: Files, name: str) -> None:
    path = next(path for path in files if path.endswith(".so"))
    files[path] = files[path][:-1] + b"x"


def rename(symbol: bytes, other: bytes) -> Callable[[Files, str], None]:
    """Let a symbol of the library have another name of that length or less."""

    def change(files: Files, name: str) -> None:
        path = next(path for path in files if path.endswith(".so"))
        assert symbol in files[path]
        files[path] = files[path].replace(symbol, other.ljust(len(symbol), b"\0"))
        claim(sha256=hashlib.sha256(files[path]).hexdigest())(files, name)

    return change


def no_guard(files: Files, name: str) -> None:
    del files[next(path for path in files if path in (f"{name}/fused.py", f"{name}/scale.py"))]


def no_manifest(files: Files, name: str) -> None:
    del files[MANIFEST.format(name=name)]


def no_requirement(files: Files, name: str) -> None:
    path = next(path for path in files if path.endswith("METADATA"))
    files[path] = files[path].replace(b"Requires-Dist: precast", b"Requires-Dist: precastle")
    files[f"{name}/more.py"] = b"from precast import ops\n"


def another_version(files: Files, name: str) -> None:
    path = MANIFEST.format(name=name)
    files[path] = files[path].replace(b'"version": "1.0"', b'"version": "1.1"')


def add(path: str) -> Callable[[Files, str], None]:
    def change(files: Files, name: str) -> None:
        files[path.format(name=name)] = b"\x7fELF"

    return change


def no_package(files: Files, name: str) -> None:
    del files[f"{name}/__init__.py"]


LIES: dict[str, tuple[str, Callable[[Files, str], None], str]] = {
    "another Python": ("bound", claim(python="none"), "Python: host/fused"),
    "every torch": ("bound", claim(abi="torch-stable-2.10"), "torch ABI: host/fused"),
    "a Python that it does not need": ("free", claim(python="cp311"), "Python: host/scale.so"),
    "an older C library": ("free", claim(glibc="2.2"), "glibc: host/scale.so"),
    "no libraries needed": ("free", claim(needed=[]), "needed: host/scale.so"),
    "a compiler of no code": ("free", claim(compiled=["sm_90:nvcc:13.1.80"]), "compiler: host/scale.so"),
    "another machine": ("free", claim(machine="aarch64"), "machine: host/scale.so"),
    "a damaged library": ("bound", damage, "bytes: host/fused"),
    "a second C++ runtime": ("bound", rename(b"PyInit_fused", b"__cxa_throw"), "C++ runtime: host/fused"),
    "no guard": ("bound", no_guard, "guard: fused.py"),
    "no manifest": ("bound", no_manifest, "manifest: "),
    "no requirement": ("bound", no_requirement, "requirements: METADATA"),
    "another version": ("bound", another_version, "version: "),
    "a file too many": ("bound", add("{name}/_C/host/left.so"), "strays: host/left.so"),
    "a library without a guard": ("bound", add("{name}/fast.so"), "unguarded: bound_ops/fast.so"),
    "files of precast": ("free", add("precast/_C/build.txt"), "ownership: precast/_C/build.txt"),
    "a folder that every wheel may have": ("free", add("_C/build.txt"), "ownership: _C/build.txt"),
    "a file at the root": ("free", add("LICENSE"), "ownership: LICENSE"),
    "files of precast by another way": (
        "free",
        add("free_ops-1.0.data/purelib/precast/x.py"),
        "ownership: precast/x.py",
    ),
    "no package of its own": ("free", no_package, "ownership: free_ops/_C/build_info.json"),
    "a copy of the runtime": (
        "bound",
        add("bound_ops.libs/libcudart.so.13"),
        "bundled: bound_ops.libs/libcudart.so.13",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(lie: str, bound_wheel: Path, free_wheel: Path, tmp_path: Path) -> None:
    which, change, said = LIES[lie]
    wheel = {"bound": bound_wheel, "free": free_wheel}[which]
    violations, _ = audit.audit(rewritten(wheel, tmp_path, change))
    assert any(f"{one.reason}: {one.candidate}: ".startswith(said) for one in violations), violations


CRASHES = """
import torch
define = ("free_ops", "DEF")  # not seen as the wheel is built
library = torch.library.Library(*define)
"""


@pytest.mark.usefixtures("quick_trials")
@pytest.mark.parametrize(
    ("init", "said"),
    [
        (CRASHES, "free_ops.scale: import: needs a process that goes on; found SIG"),
        (
            "1 / 0",
            "free_ops.scale: import: needs a module that can be imported, as it fits this machine; found ZeroDiv",
        ),
        ("import nowhere_to_be_found", None),
    ],
    ids=["a schema twice", "an error", "another package"],
)
def test_a_guard_that_cannot_be_imported_is_refused(
    init: str, said: str | None, free_wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = rewritten(free_wheel, tmp_path, lambda files, name: files.update({f"{name}/__init__.py": init.encode()}))
    assert build_main.main(["--audit", str(wheel)]) == int(said is not None)
    line = capsys.readouterr().out.splitlines()[-1].strip()
    assert line.startswith(said) if said else "passed: 1 manifests, 1 libraries, 0 imported here" in line


@pytest.mark.usefixtures("quick_trials")
def test_two_wheels_share_no_file(
    bound_wheel: Path, free_wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intruder = rewritten(free_wheel, tmp_path, lambda files, name: files.update({"bound_ops/__init__.py": b""}))
    assert audit.audit(intruder)[0] == [], "alone it is whole"
    assert build_main.main(["--audit", str(bound_wheel), str(intruder)]) == 1
    said = capsys.readouterr().out
    assert (
        f"bound_ops/__init__.py: shared: needs a file of one wheel alone; found in {bound_wheel.name} as well" in said
    )


def test_two_wheels_are_installed_and_removed_in_any_order(bound_wheel: Path, free_wheel: Path, tmp_path: Path) -> None:
    spawn.python("-m", "venv", "--without-pip", tmp_path)
    (site,) = tmp_path.glob("lib/python3*/site-packages")
    pip = ("-m", "pip", "-q", "--python", tmp_path / "bin" / "python")
    pair = {"bound_ops": bound_wheel, "free_ops": free_wheel}

    def install(name: str) -> None:
        spawn.python(*pip, "install", "--no-deps", "--no-index", pair[name])

    def remove(name: str, other: str) -> None:
        spawn.python(*pip, "uninstall", "-y", name)
        assert not (site / name).exists()
        with zipfile.ZipFile(pair[other]) as archive:
            kept = [path for path in archive.namelist() if ".dist-info/" not in path]
            assert all((site / path).read_bytes() == archive.read(path) for path in kept)

    install("bound_ops")
    install("free_ops")
    remove("bound_ops", other="free_ops")
    install("bound_ops")
    remove("free_ops", other="bound_ops")


@pytest.mark.parametrize(
    ("which", "old", "new", "said"),
    [
        ("free", "py3-none", "cp311-cp311", "needs py3-none; found cp311-cp311"),
        ("bound", "-cp3", "-py3", "tag: "),
        ("free", "linux_x86_64", "linux_aarch64", "needs a platform of x86_64"),
    ],
)
def test_a_name_is_held_against_the_bytes(
    which: str, old: str, new: str, said: str, bound_wheel: Path, free_wheel: Path, tmp_path: Path
) -> None:
    wheel = {"bound": bound_wheel, "free": free_wheel}[which]
    moved = tmp_path / wheel.name.replace(old, new, 1)
    moved.write_bytes(wheel.read_bytes())
    violations, _ = audit.audit(moved)
    assert any(said in str(violation) for violation in violations), violations


def test_a_row_of_record_is_held_against_its_file(free_wheel: Path, tmp_path: Path) -> None:
    changed = rewritten(free_wheel, tmp_path, lambda files, name: files.update({f"{name}/late.py": b""}), record=False)
    assert [v.reason for v in audit.audit(changed)[0]] == ["RECORD"]
    for record in (b"\xff,\xfe,1\n", b"a," + b"x" * 200_000 + b",1\n", b"a,b\n"):
        broken = rewritten(free_wheel, tmp_path, partial(_with_record, content=record), record=False)
        assert {v.reason for v in audit.audit(broken)[0]} == {"RECORD"}


def _with_record(files: Files, _: str, *, content: bytes) -> None:
    files.update({name: content for name in files if name.endswith("RECORD")})


def test_what_is_no_wheel_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KernelError, match="found   the file name"):
        audit.audit(tmp_path / "notes.txt")
    cut = tmp_path / "x_ops-1.0-py3-none-any.whl"
    cut.write_bytes(b"PK")
    assert build_main.main(["--audit", str(cut)]) == 2
    assert "cannot be read as a wheel" in capsys.readouterr().err


def rewritten(wheel: Path, folder: Path, change: Callable[[Files, str], None], *, record: bool = True) -> Path:
    """Write the wheel anew with a change in it, and a RECORD that agrees, so that only the lie is left to find."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files, wheel.name.partition("-")[0])
    listed = next(name for name in files if name.endswith("RECORD"))
    if record:
        rows = [f"{name},{_hash(data)},{len(data)}" for name, data in files.items() if name != listed]
        files[listed] = "\n".join([*rows, f"{listed},,"]).encode()
    target = folder / wheel.name
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


def _hash(data: bytes) -> str:
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()}"


def test_a_file_of_device_code_that_holds_more_or_less_than_its_images_is_refused(tmp_path: Path) -> None:
    info = fakes.write_installation(tmp_path, None, {"sm_80": fakes.cubin(80), "sm_90": fakes.cubin(90, 600)})
    first, second = info.device
    assert first.path == second.path and list(audit._files(tmp_path, "x", info)) == []
    (said,) = audit._files(tmp_path, "x", replace(info, device=(first,)))
    assert (said.reason, said.candidate) == ("images", first.path) and said.found.startswith(
        "unpacks to more than the "
    )
    wrong = replace(second, content_sha256="0" * 64)
    (said,) = audit._files(tmp_path, "x", replace(info, device=(first, wrong)))
    assert (said.reason, said.candidate) == (
        "bytes",
        "device/rms_norm.sm_80.cubin",
    ) and "checksum mismatch" in said.found
    (tmp_path / first.path).unlink()
    missing = [(said.candidate, said.found) for said in audit._files(tmp_path, "x", info)]
    names = [(image.name, "missing") for image in (first, second)]
    assert missing == [*names, (first.path, "No such file or directory")]
