"""What a release looks at before its first job: each thing that is missing is named, with its fix, all at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._abi.settings import Settings
from precast._builder import matrix, parts
from precast._builder.cache import Cache
from precast.errors import KernelError
from tests.kit import spawn
from tools.shared import preflight
from tools.shared.cells import Plan, expand


@pytest.fixture(scope="module")
def plan() -> Plan:
    known = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
    return expand(known, known.event("release"))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a compiler, whose pip finds nothing, whose disk is full and whose checkout has no commit."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr(preflight, "_ask_pip", lambda requirement: f"pip: no {requirement}")

    def no_wheel(torch: str) -> str:
        raise OSError(f"no index has torch {torch}")

    monkeypatch.setattr(preflight.torch_wheel, "find_wheel", no_wheel)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000_000))
    return tmp_path


def test_everything_that_is_missing_is_named_at_once(plan: Plan, bare: Path) -> None:
    out = bare / "release"
    with pytest.raises(KernelError) as refused:
        preflight.check(plan, out, Settings(), Cache(bare / "cache"), bare)
    said = str(refused.value)
    first, *lines = said.splitlines()
    labels = {cell.requirement for cell in plan.device if not cell.not_built}
    assert first == f"the release in {out} cannot be made: 5 things are missing"
    compilers = "a C++ compiler for aarch64 and for x86_64"
    for needed in (compilers, "GB", *labels, "the wheel of torch", "SOURCE_DATE_EPOCH"):
        assert any(line.startswith("  needed") and needed in line for line in lines), needed
    fixes = [line.partition(") ")[2] for line in lines if line[8:].strip()[:1].isdigit() and ") " in line]
    assert "sudo apt-get install -y g++-aarch64-linux-gnu g++" in fixes and len(fixes) == 5
    for command in fixes:
        spawn.run("/bin/bash", "-n", "-c", command)
    assert not out.exists(), "nothing was begun"


def test_what_is_made_already_asks_for_nothing(plan: Plan, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = bare / "release"
    for cell in (*plan.device, *plan.host):
        (out / "parts" / cell.name).mkdir(parents=True)
        (out / "parts" / cell.name / parts.MANIFEST).write_text("{}")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    # fails if a tool or a compiler is asked for: that raises
    preflight.check(plan, out, Settings(), Cache(bare / "cache"), bare)


def test_room_is_added_up_on_one_file_system(tmp_path: Path) -> None:
    wanted = {tmp_path / "cache": 2_000_000_000, tmp_path / "out" / "release": 500_000_000}
    assert list(preflight.space(wanted, lambda folder: 2_500_000_000)) == []
    (missing,) = preflight.space(wanted, lambda folder: 2_400_000_000)
    assert missing.found == f"2.4 GB free in {tmp_path}" and missing.needed == "2.5 GB"


def test_an_index_that_answers_is_missing_nothing() -> None:
    assert list(preflight.index(["a==1", "b==2"], lambda requirement: None)) == []
    (missing,) = preflight.index(["a==1", "b==2"], lambda one: "pip: not found" if one == "b==2" else None)
    assert (missing.found, missing.needed) == ("pip: not found", "b==2") and " b==2; do " in missing.fix


def test_pip_itself_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said = preflight._ask_pip("nvidia-cuda-nvrtc==13.0.88")
    assert said is not None and "No matching distribution found for nvidia-cuda-nvrtc==13.0.88" in said
