"""Where a wheel of torch is looked for, whatever pip is told, and how single files of it are read."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from precast._builder import torch_wheel
from tests.kit import loopback, spawn
from tests.unit.builder.ranges import Server, make_wheel, serving

WHEEL = "torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """An index with the wheel of torch 2.15.0, and the paths that it is asked for; pip knows no other configuration."""
    project = tmp_path / "index" / "torch"
    project.mkdir(parents=True)
    make_wheel(project / WHEEL)
    (project / "index.html").write_text(f'<!DOCTYPE html><a href="{WHEEL}">{WHEEL}</a>')
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text("")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with loopback.served(tmp_path / "index") as served:
        yield served


@pytest.mark.parametrize("where", ["variable", "file"])
def test_the_index_is_the_one_that_pip_is_configured_for(
    where: str, index: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = index
    if where == "variable":
        monkeypatch.setenv("PIP_INDEX_URL", address)
    else:
        (tmp_path / "pip.conf").write_text(f"[install]\nindex-url = {address}\n")
    assert torch_wheel.find_wheel("2.15.0") == f"{address}/torch/{WHEEL}"
    assert asked[0] == "/torch/"


BENT: dict[str, Callable[[Path], dict[str, str]]] = {
    "a constraint": lambda folder: {"PIP_CONSTRAINT": str(folder / "constraint.txt")},
    "no index": lambda folder: {"PIP_NO_INDEX": "1"},
    "a folder of wheels": lambda folder: {"PIP_FIND_LINKS": str(folder / "wheels")},
    "no wheels": lambda folder: {"PIP_NO_BINARY": ":all:"},
    "another Python": lambda folder: {"PIP_PYTHON_VERSION": "3.8"},
    "a user's folder": lambda folder: {"PIP_USER": "1"},
}


@pytest.mark.parametrize("how", BENT)
@pytest.mark.parametrize("where", ["variable", "file"])
def test_the_rest_of_the_configuration_changes_nothing(
    how: str, where: str, index: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = index
    (tmp_path / "constraint.txt").write_text("torch<=2.14.1\n")
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels" / WHEEL.replace("2.15.0", "2.15.0+cpu"))
    bent = {"PIP_INDEX_URL": address, **BENT[how](tmp_path)}
    if where == "variable":
        for name, value in bent.items():
            monkeypatch.setenv(name, value)
    else:
        lines = (f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {value}" for name, value in bent.items())
        (tmp_path / "pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    assert torch_wheel.find_wheel("2.15.0") == f"{address}/torch/{WHEEL}"


def test_what_is_missing_and_where_is_said(index: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    address, _ = index
    monkeypatch.setenv("PIP_INDEX_URL", address.replace("//", "//me:secret@"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{address}/more")
    with pytest.raises(FileNotFoundError) as caught:
        torch_wheel.find_wheel("2.99.0")
    said = str(caught.value)
    assert said.startswith(f"no wheel of torch 2.99.0 on {address}, {address}/more: ERROR: ")
    assert "No matching distribution" in said and "secret" not in said


def test_an_index_that_asks_for_a_password_gets_it_for_its_files_too(
    served: Server, index: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = index
    monkeypatch.setenv("PIP_INDEX_URL", address.replace("//", "//me:se%20cret@"))
    assert torch_wheel.find_wheel("2.15.0") == f"{address.replace('//', '//me:se%20cret@')}/torch/{WHEEL}"
    make_wheel(served.path)
    served.password = "Basic " + base64.b64encode(b"me:se cret").decode()
    with torch_wheel.opened(served.url.replace("//", "//me:se%20cret@")) as wheel:
        assert "torch/lib/large.so" in wheel.namelist()
    with (
        pytest.raises(OSError, match=f"^{served.url}: HTTP Error 401"),
        torch_wheel.opened(served.url.replace("//", "//me:wrong@")),
    ):
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "served.whl") as server:
        yield server


def test_a_server_without_ranges_is_named_without_its_password(served: Server) -> None:
    make_wheel(served.path)
    served.ranges = False
    with (
        pytest.raises(OSError, match=f"^{served.url}: the server sends whole files only"),
        torch_wheel.opened(served.url.replace("//", "//me:secret@")),
    ):
        pass
    assert torch_wheel.without_secret("https://me:secret@index/torch.whl") == "https://index/torch.whl"


def test_a_remote_file_reads_like_a_local_one(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_wheel, "BLOCK_BYTES", 7)
    content = bytes(range(30))
    served.path.write_bytes(content)
    remote, local = torch_wheel._RangeReader(served.url), io.BytesIO(content)
    assert (remote.tell(), remote.read()) == (0, content)
    for file in (remote, local):
        file.seek(0)
    assert [remote.read(4), remote.tell(), remote.read(3), remote.tell()] == [content[:4], 4, content[4:7], 7]
    for offset, whence in (
        (13, io.SEEK_SET),
        (-3, io.SEEK_END),
        (0, io.SEEK_END),
        (5, io.SEEK_END),
        (-20, io.SEEK_CUR),
    ):
        local.seek(remote.tell())
        assert remote.seek(offset, whence) == local.seek(offset, whence) == remote.tell()
        assert remote.readall() == local.read()


def test_only_what_is_asked_for_is_read(served: Server) -> None:
    make_wheel(served.path)
    with torch_wheel.opened(served.url) as wheel:
        assert wheel.read("torch/include/torch/a.h") == b"// a\n"
    assert served.sent < 1_000_000, "the large file was not read"


def test_what_pip_says_is_passed_on() -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        failed = "install" in command
        return subprocess.CompletedProcess(command, int(failed), "", "ERROR: the disk is full" if failed else "")

    with pytest.raises(FileNotFoundError, match="the disk is full"):
        torch_wheel.find_wheel("2.15.0", run=pip)

    def no_pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "No module named pip")

    with pytest.raises(FileNotFoundError, match="no answer from pip config list: No module named pip"):
        torch_wheel.find_wheel("2.15.0", run=no_pip)


def test_pip_is_asked_for_the_same_wheel_on_every_machine() -> None:
    asked: list[str] = []

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "install" in command:
            asked.extend(command)
            report = {"install": [{"download_info": {"url": "https://index/torch.whl"}}]}
            Path(command[command.index("--report") + 1]).write_text(json.dumps(report))
        return subprocess.CompletedProcess(command, 0, "", "")

    assert torch_wheel.find_wheel("2.15.0", run=pip) == "https://index/torch.whl"
    assert "--dry-run" in asked and "torch==2.15.0" in asked and "--platform=manylinux_2_28_x86_64" in asked


def test_pip_is_asked_away_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m`` looks there first: a pip.py, or a json.py, of somebody else would be run."""
    (tmp_path / "pip.py").write_text("raise SystemExit('code of the current directory was run')")
    monkeypatch.chdir(tmp_path)
    ran = spawn.python("-m", "pip", "--version", status=None)
    assert "current directory was run" in ran.stderr, "the danger is real"

    def version_only(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        again = [*command[: command.index("pip") + 1], "--version"]
        spawn.run(*again, env=how["env"])
        return subprocess.CompletedProcess(command, int("install" in command), "", "enough")

    with pytest.raises(FileNotFoundError, match="enough"):
        torch_wheel.find_wheel("2.15.0", run=version_only)
