"""The benchmarks' own arithmetic, and that their peers still fit the kernels that they borrow."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_a_ratio_above_one_means_that_we_are_better() -> None:
    from benchmarks.report import Row

    assert Row("time", 2.0, "s", "peer", 6.0).ratio == 3.0
    assert Row("share", 0.9, "share", "peer", 0.6, higher_is_better=True).ratio == pytest.approx(1.5)
    assert Row("alone", 2.0, "s").ratio is None


def test_medians_come_from_turns() -> None:
    from benchmarks.report import interleaved_medians

    order: list[str] = []
    values = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 5.0, 7.0])}

    def sample(name: str) -> float:
        order.append(name)
        return next(values[name])

    medians = interleaved_medians({"a": lambda: sample("a"), "b": lambda: sample("b")}, 3)
    assert medians == {"a": 2.0, "b": 5.0}
    assert order == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("value", "text"), [(0.00123456, "0.001235"), (7.0, "7.000"), (123.456, "123.5"), (5.0e9, "5,000,000,000")]
)
def test_numbers_are_printed_without_exponents(value: float, text: str) -> None:
    from benchmarks.report import number

    assert number(value) == text


def test_results_hold_the_ratio_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import report

    monkeypatch.setattr(report, "RESULTS", tmp_path)
    row = report.Row("what", 2.0, "s", "peer", 1.0)
    path = report.save(report.Report("name", "title", (row,)), {"cpu": "a fast one"})
    kept = json.loads(path.read_text())
    assert kept["rows"][0]["ratio"] == 0.5
    assert kept["host"] == {"cpu": "a fast one"}


def test_an_installation_without_prebuilt_files_is_refused(tmp_path: Path) -> None:
    from benchmarks import child

    with pytest.raises(SystemExit, match="nothing prebuilt in"):
        child.use_installation(tmp_path)


def test_an_unknown_benchmark_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no benchmark is called speed; there are start, call" in done.stderr


@pytest.mark.torch
@pytest.mark.compiler
def test_the_pybind_peer_compiles() -> None:
    import torch

    include = Path(torch.__file__).parent / "include"
    folders = [ROOT / "csrc", include, include / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include")]
    options = ["-std=c++20", "-fsyntax-only", "-DTORCH_EXTENSION_NAME=peer", "-DPRECAST_CPU_LEVEL=baseline"]
    source = ROOT / "benchmarks" / "peers" / "binding.cpp"
    command = ["g++", *options, *(f"-I{folder}" for folder in folders), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
