"""Evidence: what a file may say, what it counts for, and how the summary splits the ways to have torch by it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from precast._builder import matrix
from tests.kit.wheels import make_wheel
from tools.shared import evidence, plan_summary, served
from tools.shared.cells import expand
from tools.shared.evidence import EvidenceError
from tools.shared.wheel import NotAWheel
from tools.verbs import plan as tools_plan

CHECKOUT = Path(__file__).resolve().parents[3]
KNOWN = matrix.load(CHECKOUT / "matrix.toml")
CELLS = served.torch_cells(KNOWN)
KEPT = evidence.load(evidence.FOLDER, KNOWN)

CPU_RUN: dict[str, Any] = {
    "torch": "2.13.0",
    "build": "cpu",
    "python": "3.11",
    "machine": "x86_64",
    "host": "torch-stable-2.10",
    "wheel": "cu121",
    "device": "cpu",
    "hardware": "a processor",
    "checks": ["rms_norm against torch"],
}
GPU_RUN = CPU_RUN | {"torch": "2.11.0", "build": "cu130", "python": "3.12", "wheel": "cu130", "device": "cuda"}
FILE: dict[str, Any] = {
    "schema": 1,
    "title": "two runs",
    "date": "2026-11-21",
    "commit": "0" * 40,
    "command": "make test",
    "runs": [CPU_RUN, GPU_RUN],
}


def written(folder: Path, document: object, name: str = "a.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def test_a_run_counts_for_its_own_cell_alone(tmp_path: Path) -> None:
    found = evidence.read(written(tmp_path, FILE), KNOWN)
    executed = evidence.executed([found], CELLS)
    assert [(c.torch, c.build.name, str(c.python), c.machine) for c in executed] == [
        ("2.11.0", "cu130", "3.12", "x86_64"),
        ("2.13.0", "cpu", "3.11", "x86_64"),
    ]
    assert set(executed.values()) == {(found,)} and not evidence.without_gpu([found], CELLS)


def test_a_cuda_build_is_not_executed_without_a_gpu(tmp_path: Path) -> None:
    found = evidence.read(written(tmp_path, FILE | {"runs": [GPU_RUN | {"device": "cpu"}]}), KNOWN)
    assert evidence.executed([found], CELLS) == {}
    assert [(cell.torch, cell.build.name) for cell in evidence.without_gpu([found], CELLS)] == [("2.11.0", "cu130")]


def test_another_patch_release_and_a_library_without_a_wheel_count_too(tmp_path: Path) -> None:
    run = CPU_RUN | {"torch": "2.13.1", "wheel": None}
    found = evidence.read(written(tmp_path, FILE | {"runs": [run], "commit": None}), KNOWN)
    assert found.commit is None
    assert [cell.torch for cell in evidence.executed([found], CELLS)] == ["2.13.0"]


def run_with(**changes: object) -> dict[str, Any]:
    return FILE | {"runs": [CPU_RUN | changes]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "needed an object, found list"),
        (FILE | {"schema": 2}, "schema must be 1"),
        (FILE | {"extra": 1}, "unknown keys: extra"),
        (FILE | {"date": "yesterday"}, "date"),
        (FILE | {"commit": "fb77f44"}, "not a commit: 'fb77f44'"),
        (FILE | {"command": " "}, "command: it says nothing"),
        (FILE | {"runs": []}, "no runs"),
        (FILE | {"runs": [CPU_RUN, CPU_RUN]}, r"runs\[1\], torch 2.13.0 cpu.*: it is there twice"),
        ({key: value for key, value in FILE.items() if key != "title"}, "title is missing"),
        (run_with(torch="2.13.0a0"), "matrix.toml has no such torch"),
        (run_with(torch="2.3.1"), "matrix.toml has no such torch"),
        (run_with(torch="2.13.0+cpu"), "matrix.toml has no such torch"),
        (run_with(build="cu121"), "matrix.toml has no such torch"),
        (run_with(python="3.9"), "matrix.toml has no such torch"),
        (run_with(machine="riscv64"), "matrix.toml has no such torch"),
        (run_with(host="torch-2.9-cxx1"), "it is bound by torch-table-1, not torch-2.9-cxx1"),
        (run_with(wheel="cu125"), "no label 'cu125'"),
        (run_with(wheel=7), "wheel: needed str, found 7"),
        (run_with(device="tpu"), "device must be one of cpu, cuda"),
        (run_with(device="cuda"), "a GPU needs a CUDA build of torch"),
        (FILE | {"runs": [GPU_RUN | {"wheel": "cpu"}]}, "a wheel with device code"),
        (run_with(checks=[]), "checks must say what was executed"),
        (run_with(checks=[""]), "it says nothing"),
        (run_with(passed=3), "unknown keys: passed"),
    ],
)
def test_evidence_that_cannot_be_is_refused_by_name(tmp_path: Path, document: object, message: str) -> None:
    path = written(tmp_path, document)
    with pytest.raises(EvidenceError, match=message) as refused:
        evidence.load(tmp_path, KNOWN)
    assert str(path) in str(refused.value)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(EvidenceError, match=r"a\.json"):
        evidence.load(tmp_path, KNOWN)


@pytest.mark.parametrize(("event", "only_torch"), [("pr", None), ("release", None), ("release", "2.6")])
def test_the_split_adds_up(event: str, only_torch: str | None) -> None:
    the_plan = expand(KNOWN, KNOWN.event(event), only_torch)
    counted = plan_summary.split(the_plan, KNOWN, KEPT)
    assert set(counted.executed) <= set(counted.built) <= set(counted.planned) == set(counted.cells)
    assert set(counted.without_gpu) <= set(counted.built) - set(counted.executed)
    assert set(counted.declared) | set(counted.built) == set(counted.cells)
    assert len(counted.declared) + len(counted.built) == len(counted.cells) == len(set(counted.cells))


def test_each_kept_file_counts_for_something() -> None:
    assert KEPT
    for found in KEPT:
        assert evidence.executed([found], CELLS) or evidence.without_gpu([found], CELLS), found.path


def test_what_nobody_can_build_was_not_executed(tmp_path: Path) -> None:
    found = evidence.read(written(tmp_path, FILE), KNOWN)
    none_built = dataclasses.replace(
        KNOWN, machine_specs=tuple(dataclasses.replace(m, not_built="for the test") for m in KNOWN.machine_specs)
    )
    with pytest.raises(
        EvidenceError, match=r"a\.json: torch 2\.11\.0 cu130, Python 3\.12, x86_64 was executed, and no"
    ):
        plan_summary.split(expand(none_built, none_built.event("pr")), none_built, [found])


def test_the_summary_names_the_files(tmp_path: Path) -> None:
    written(tmp_path, FILE | {"runs": [CPU_RUN]}, "one.json")
    written(tmp_path, FILE, "two.json")
    text = plan_summary.of(expand(KNOWN, KNOWN.event("pr")), KNOWN, evidence.load(tmp_path, KNOWN))
    words = [line.split() for line in text.splitlines()]
    assert ["executed", "2"] in words and ["one.json", "1"] in words and ["two.json", "2"] in words


def test_the_summary_measures_a_wheelhouse(tmp_path: Path) -> None:
    release = expand(KNOWN, KNOWN.event("release"))
    for cell in release.wheel[:3:2]:
        info = served.manifest(KNOWN, cell, declared=False)
        make_wheel(tmp_path, version=f"1.0+{cell.label}", files={plan_summary.MANIFEST: info.to_json().encode()})
    there = plan_summary.wheelhouse(tmp_path, CELLS)
    built = served.built(release, KNOWN, CELLS)
    assert (there.count, there.bytes) == (2, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert there.serves == tuple(cell for cell in built if cell.machine == "x86_64")
    said = f"2 wheels of {there.bytes / 1e6:.2f} MB together serve {len(there.serves)} of them"
    assert said in plan_summary.of(release, KNOWN, (), tmp_path)


def test_a_wheelhouse_without_our_wheels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotAWheel, match="no wheel in it"):
        plan_summary.wheelhouse(tmp_path, CELLS)
    wheel = make_wheel(tmp_path)
    assert tools_plan.main(["--summary", "--wheelhouse", str(tmp_path)]) == 1
    assert f"{wheel}: {plan_summary.MANIFEST} cannot be read" in capsys.readouterr().err
