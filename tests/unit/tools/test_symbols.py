"""The lists of what torch exports are recorded from a torch, and from the right one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from precast._abi.torch_abi import Exact, parse_torch_abi
from precast._abi.version import Release
from precast.errors import KernelError
from tools import symbols
from tools.guards.subject import TORCH_LISTS
from tools.guards.symbols import exported_by

pytestmark = pytest.mark.compiler

ABI = Exact(Release(2, 9), True)


def compiled(path: Path, source: str, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-shared", "-fPIC", "-nostdlib", "-x", "c++", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, check=True, text=True, capture_output=True)
    return path


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A folder that looks like an installed torch."""
    folder = tmp_path / "site" / "torch"
    compiled(folder / "lib" / "libtorch_cpu.so", "namespace at { int full() { return 0; } int empty() { return 0; } }")
    compiled(tmp_path / "site" / "torch.libs" / "libgomp-1.so.1", 'extern "C" int GOMP_parallel() { return 0; }')
    (folder / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
    return folder


def host(folder: Path, name: str) -> Path:
    declared = f'extern "C" int GOMP_parallel(); namespace at {{ int {name}(); }}\n'
    return compiled(folder / f"{name}.so", f"{declared}int f() {{ return GOMP_parallel() + at::{name}(); }}\n")


def test_what_a_library_takes_is_recorded(torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lists"
    for name in ("full", "empty"):  # a second library adds to the list
        command = [str(host(tmp_path, name)), "--abi", str(ABI), "--torch", str(torch), "--out", str(out)]
        assert symbols.main(command) == 0
    lines = Path(capsys.readouterr().out.split()[-1]).read_text().splitlines()
    assert lines[0].startswith("# torch 2.9.1+cpu, ") and lines[1:] == [
        "GOMP_parallel",
        "_ZN2at4fullEv",
        "_ZN2at5emptyEv",
    ]
    assert exported_by(ABI, out) == set(lines[1:])


def test_a_symbol_that_torch_lacks_is_refused(torch: Path, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="_ZN2at4onesEv"):
        symbols.record(ABI, torch, [host(tmp_path, "ones")], tmp_path / "lists")
    assert not (tmp_path / "lists").exists()


def test_another_torch_is_refused(torch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for abi, needed in (("torch-2.8-cxx1", "an installed torch 2.8"), ("torch-stable-2.10", "pinned headers")):
        assert symbols.main([str(host(tmp_path, "full")), "--abi", abi, "--torch", str(torch)]) == 1
        assert needed in capsys.readouterr().err
    with pytest.raises(KernelError, match="of no version"):
        symbols.record(ABI, tmp_path, [], tmp_path / "lists")


def test_the_recorded_lists_name_their_torch() -> None:
    lists = sorted(TORCH_LISTS.glob("*.txt"))
    assert lists
    for path in lists:
        abi = parse_torch_abi(path.stem)
        first = path.read_text().splitlines()[0]
        assert isinstance(abi, Exact) and first.startswith(f"# torch {abi.release}.")
        assert "GOMP_parallel" in (exported_by(abi, TORCH_LISTS) or ())
