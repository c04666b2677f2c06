"""``python -m tools tune`` without a GPU: what it tries, and which configurations a kernel can have."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.tuning")


def test_each_group_says_why_and_asks_for_configurations_that_exist(tuning: Any) -> None:
    cases = importlib.import_module("benchmarks.shapes_cases")
    for group in tuning.tries():
        assert group["why"]
        candidates = [tuning.Candidate.parse(text) for text in group["candidates"]]
        assert len(set(candidates)) == len(candidates)
        for op, way, shape, dtype in group["cases"]:
            case = cases.Case(op, way, tuple(shape), dtype, "tuning")
            assert sum(tuning.fits(candidate, case) for candidate in candidates) >= 2, case.text


@pytest.mark.parametrize("text", ["", "512", "512x", "x4", "soon", "512x4x2"])
def test_what_is_no_configuration(tuning: Any, text: str) -> None:
    with pytest.raises(ValueError, match="needed THREADSxBLOCKS, early, late or -"):
        tuning.Candidate.parse(text)


def test_a_kernel_holds_so_many_vectors_per_thread(tuning: Any) -> None:
    cases = importlib.import_module("benchmarks.shapes_cases")

    def fits(text: str, op: str, columns: int, way: str = "forward") -> bool:
        case = cases.Case(op, way, (4, columns), "bfloat16", "tuning")
        fit: bool = tuning.fits(tuning.Candidate.parse(text), case)
        return fit

    assert fits("512x4", "scaled_softmax", 512 * 4 * 8 * 8)
    assert not fits("512x4", "scaled_softmax", 512 * 4 * 8 * 8 + 8)
    assert not fits("512x4", "scaled_softmax", 512 * 4 * 8 * 8, "training")
    assert fits("512x4", "rms_norm", 512 * 4 * 4 * 8)
    assert not fits("512x4", "rms_norm", 512 * 4 * 4 * 8 + 8)
    assert not fits("512x0", "fused_add_rms_norm", 512 * 8 + 8)
    assert not fits("512x4", "rms_norm", 2048), "most threads would have nothing"


def test_no_host_libraries_is_one_clear_error(tuning: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "7f00-7f01 r-xp 00000000 00:00 0 /usr/lib/libc.so.6\n")
    with pytest.raises(RuntimeError, match="loaded no host library of precast; call one of its ops first"):
        tuning.host_libraries()


def test_the_file_has_a_line_for_each_case(tuning: Any, tmp_path: Path) -> None:
    results = [{"case": "a", "steady": {"-": 1.0}, "cold": {"-": 2.0}}, {"case": "b", "steady": {}, "cold": {}}]
    tuning.write(tmp_path / "tuned.json", results, "GPU")
    text = (tmp_path / "tuned.json").read_text()
    assert json.loads(text) == {"device": "GPU", "cases": results}
    assert len(text.splitlines()) == 4
    assert tuning.line(results[0]) == "a: - 1.00 (2.00)"
