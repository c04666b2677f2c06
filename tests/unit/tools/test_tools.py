"""The tools' own readers, on files made here. Whole wheels are in tests/wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from precast._builder import matrix
from precast.core.capability import GpuTarget
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile
from precast.core.version import CudaVersion, Label
from tests.kit import wheels
from tools import __main__ as tools_main
from tools.guards import targets
from tools.guards.targets import device_claims
from tools.shared import binaries
from tools.shared.wheel import NotAWheel, read_wheel, record_errors

PTX = b"""//
// Cuda compilation tools, release 13.0, V13.0.88
//
.version 9.0
.target sm_90
.visible .entry first(
.visible .entry second(
"""


def test_ptx_facts() -> None:
    facts = binaries.read_ptx(PTX)
    assert (facts.target, facts.isa, facts.nvrtc) == ("compute_90", "9.0", "13.0.88")
    assert facts.entries == {"first", "second"}


@pytest.mark.parametrize("data", [b"", PTX + b"\0", PTX.replace(b".target", b".tarjet"), PTX + b".version 8.0\n"])
def test_what_is_no_ptx_is_refused(data: bytes) -> None:
    with pytest.raises(binaries.Unreadable):
        binaries.read_ptx(data)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(200), PTX])
def test_what_is_no_elf_is_refused(data: bytes) -> None:
    for reader in (binaries.read_cubin, binaries.read_library):
        with pytest.raises(binaries.Unreadable):
            reader(data)


@pytest.mark.parametrize(
    ("target", "nvrtc", "layout"), [("sm_90", "12.8.93", 12), ("sm_100", "12.8.93", 13), ("sm_90", "13.0.88", 13)]
)
def test_the_layout_of_a_cubin_follows_compiler_and_gpu(target: str, nvrtc: str, layout: int) -> None:
    parsed = GpuTarget.parse(target)
    major = CudaVersion.parse(nvrtc).major
    file = DeviceFile(
        f"device/f.{target}.cubin.xz", "0" * 64, 1, "f", parsed, nvrtc, CudaVersion(major, 0), 0, 9, "e" * 64
    )
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, (("nvrtc", nvrtc),), (), (file,))
    for found in (12, 13):
        facts = binaries.DeviceFacts(target, found, nvrtc, None, frozenset({"k"}))
        wrong = [violation.reason for violation in device_claims(file, facts, info)]
        assert wrong == ([] if found == layout else ["layout"])


def test_ptx_of_another_isa_than_its_toolkit_writes_is_refused(checkout: Path) -> None:
    target, cuda = GpuTarget.parse("compute_90"), CudaVersion(13, 0)
    file = DeviceFile("device/f.compute_90.ptx.xz", "0" * 64, 1, "f", target, "13.0.88", cuda, 0, 9, "e" * 64)
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, (("nvrtc", "13.0.88"),), (), (file,))
    known = matrix.load(checkout / "matrix.toml")
    for isa, wrong in (("9.0", []), ("8.9", ["ptx isa"])):
        image = PTX.replace(b".version 9.0", f".version {isa}".encode())
        wheel = SimpleNamespace(files={f"precast/_C/{file.path}": b""})
        audited: Any = SimpleNamespace(info=info, matrix=known, wheel=wheel, image=lambda file, image=image: image)
        assert [violation.reason for violation in targets._device_files(audited)] == wrong


def test_build_paths_are_found_and_common_places_are_not() -> None:
    data = b"\0/home/me/csrc/host.cpp\0/lib64/ld-linux-x86-64.so.2\0csrc/a/host.cpp\0/proc/self/maps\0a/b/c\0/tmp/x\0"
    assert binaries.absolute_paths(data) == ["/home/me/csrc/host.cpp", "/tmp/x"]


def make_wheel(folder: Path, record: str | None = None) -> Path:
    content = b"print()\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    honest = f"a.py,sha256={digest},{len(content)}\na-1.dist-info/RECORD,,\n"
    path = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", content)
        archive.writestr("a-1.dist-info/RECORD", honest if record is None else record)
    return path


def test_an_honest_record_has_no_errors(tmp_path: Path) -> None:
    assert list(record_errors(read_wheel(make_wheel(tmp_path)))) == []


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ("", "a.py"),
        ("a.py,sha256=x,8\n", "a.py"),
        ("a.py,,\nb.py,,\n", "b.py"),
        ("a.py,,\na.py,,\n", "a.py"),
        ("a.py\n", "a-1.dist-info/RECORD"),
        ("a.py," + "x" * 200_000 + ",8\n", "a-1.dist-info/RECORD"),
    ],
)
def test_a_dishonest_record_is_found(tmp_path: Path, record: str, where: str) -> None:
    assert where in {name for name, _, _ in record_errors(read_wheel(make_wheel(tmp_path, record)))}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check-set gone", "python -m tools check-set: gone: No such file"),
        ("index house --out file/site --version 1.0", "python -m tools index: file: File exists"),
        (f"repair house/precast-1.0-{wheels.TAG}.whl --out out", "found   no precast/_C/build_info.json in it"),
    ],
)
def test_what_no_verb_can_do_is_said_without_a_traceback(
    command: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wheels.make_wheel(tmp_path / "house")
    (tmp_path / "file").touch()
    assert tools_main.main(command.split()) == 1
    assert said in capsys.readouterr().err


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    for name in ("a.zip", "a-1-py3-none-any.whl"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(NotAWheel):
            read_wheel(tmp_path / name)


def test_the_matrix_is_printed_as_json(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tools_main.main(["matrix"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["labels"]["cu130"]["requirement"] == "nvidia-cuda-nvrtc==13.0.88"
    assert set(printed["labels"]) == {spec.name for spec in matrix.load(checkout / "matrix.toml").labels}


def test_an_unknown_verb_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools_main.main(["audti"]) == 2
    listed = capsys.readouterr().out
    assert all(f"  {verb} " in listed for verb in tools_main.VERBS)
    assert tools_main.main([]) == 0


def test_every_verb_is_documented_and_explains_itself(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (checkout / "tools" / "README.md").read_text()
    for verb in tools_main.VERBS:
        assert re.search(rf"^\| `{verb}[ `]", readme, re.MULTILINE), verb
        with pytest.raises(SystemExit) as left:
            tools_main.main([verb, "--help"])
        assert left.value.code == 0 and f"python -m tools {verb}" in capsys.readouterr().out


def test_a_verb_without_its_packages_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="jinja2.filters")

    monkeypatch.setattr(tools_main.importlib, "import_module", missing)
    assert tools_main.main(["index"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("python -m tools index needs the package jinja2.filters\n")
    assert "make tools && . .venv-tools/bin/activate" in said


def test_a_module_of_ours_that_is_missing_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(tools_main.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        tools_main.main(["index"])
