"""The plan of a release: what it expands to, the laws that every expansion keeps, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder import matrix, parts
from precast._builder.matrix import Matrix
from precast.core.torch_abi import parse_torch_abi
from precast.core.version import Label
from tools import __main__ as tools_main
from tools.shared import cells, evidence, plan_summary, served
from tools.shared.cells import MAX_JOBS, DeviceCell, HostCell, Plan, PlanError, TestCell, WheelCell, expand
from tools.verbs import nvrtc, plan

KNOWN = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
EVENTS = ("pr", "main", "nightly", "release")
PLANS = {name: expand(KNOWN, KNOWN.event(name)) for name in EVENTS}

Snapshot = Callable[[str, str], None]


@pytest.mark.parametrize("event", EVENTS)
def test_every_expansion_is_known(event: str, snapshot: Snapshot) -> None:
    # fails if the plan differs from the kept one
    snapshot(f"plan-{event}.txt", plan.table(PLANS[event]))


def test_a_slim_expansion_is_known(snapshot: Snapshot) -> None:
    for minor in ("2.6", "2.13"):
        # fails if the plan differs from the kept one
        snapshot(f"plan-release-torch-{minor}.txt", plan.table(expand(KNOWN, KNOWN.event("release"), minor)))


def test_the_summaries_are_known(snapshot: Snapshot) -> None:
    kept = evidence.load(evidence.FOLDER, KNOWN)
    # fails if a summary differs from the kept one
    snapshot("plan-summaries.txt", "\n".join(plan_summary.of(PLANS[event], KNOWN, kept) for event in EVENTS))


def test_the_documentation_counts_as_the_plan_does(checkout: Path) -> None:
    text = (checkout / "docs" / "concepts" / "wheels.md").read_text()
    release = PLANS["release"]
    libraries = tuple(cell for cell in release.host if cell.headers is None)
    adapters = tuple(cell for cell in release.host if cell.headers is not None)
    rows = (("device code", release.device), ("host library", libraries), ("adapter", adapters))
    for title, found in (*rows, ("wheel", release.wheel)):
        row = re.search(rf"^\| {title} \| .+ \| (\d+) \| (\d+)\b", text, re.MULTILINE)
        assert row is not None
        assert row.groups() == (str(len(found)), str(sum(not cell.not_built for cell in found)))
    ways = served.torch_cells(KNOWN)
    built = served.built(release, KNOWN, ways)
    assert f"There are {len(ways)} ways to have torch" in text and f"serve {len(built)} of them" in text


def test_the_matrix_has_the_events_that_are_tested() -> None:
    assert tuple(spec.name for spec in KNOWN.events) == EVENTS


@pytest.mark.parametrize("event", EVENTS)
def test_no_cell_is_there_twice(event: str) -> None:
    names = [cell.name for cell in PLANS[event].cells]
    assert len(names) == len(set(names))
    contents = [dataclasses.replace(cell, name="") for cell in PLANS[event].cells]
    assert len(contents) == len(set(contents)), "two names for one job"


@pytest.mark.parametrize("event", EVENTS)
def test_each_cell_is_made_of_what_it_names(event: str) -> None:
    the_plan = PLANS[event]
    by_name = {cell.name: cell for cell in the_plan.cells}
    for wheel in the_plan.wheel:
        sources = [by_name[name] for name in wheel.device]
        assert all(isinstance(source, DeviceCell) for source in sources)
        there = {target for source in sources if isinstance(source, DeviceCell) for target in source.targets}
        assert set(wheel.targets) <= there and bool(wheel.targets) == bool(sources)
        for name in (*wheel.host, *wheel.lacks):
            library = by_name[name]
            assert isinstance(library, HostCell) and library.machine == wheel.machine
            assert bool(library.not_built) == (name in wheel.lacks)
        if not wheel.not_built:
            assert wheel.host and not any(source.not_built for source in sources)
    for test in the_plan.test:
        tested = by_name[test.wheel]
        assert isinstance(tested, WheelCell) and (tested.machine, tested.runner) == (test.machine, test.runner)
        holds = parts.host_name(parse_torch_abi(test.abi), test.machine) in (
            tested.host if not test.not_built else (*tested.host, *tested.lacks)
        )
        assert holds and (not tested.not_built or test.not_built)


@pytest.mark.parametrize("event", EVENTS)
def test_no_matrix_is_larger_than_github_runs(event: str) -> None:
    sizes = {name: len(found) for name, found in PLANS[event].matrices().items()}
    assert all(0 < size <= MAX_JOBS for size in sizes.values()), sizes
    assert sum(sizes.values()) == len(PLANS[event].cells)


@pytest.mark.parametrize("event", ["main", "nightly", "release"])
@pytest.mark.parametrize("machine", KNOWN.machines)
def test_every_torch_python_and_label_is_tested(event: str, machine: str) -> None:
    tests = [cell for cell in PLANS[event].test if cell.machine == machine]
    assert {cell.torch for cell in tests} - {"nightly"} == {release.version for release in KNOWN.releases}
    assert {cell.python for cell in tests} == {str(python) for python in KNOWN.pythons}
    assert {cell.wheel for cell in tests} == {f"wheel-{spec.name}-{machine}" for spec in KNOWN.labels}
    pairs = {"release": len(KNOWN.releases) * len(KNOWN.labels)}
    pairs["nightly"] = sum(len(release.pythons[machine]) for release in KNOWN.releases)
    found = {
        (cell.torch, cell.wheel if event == "release" else cell.python) for cell in tests if cell.torch != "nightly"
    }
    assert len(found) >= pairs.get(event, len(KNOWN.releases))
    assert ("nightly" in {cell.torch for cell in tests}) == (event == "nightly")


def test_a_pull_request_meets_every_torch_on_fewer_wheels() -> None:
    reduced, full = PLANS["pr"], PLANS["release"]
    assert {cell.torch for cell in reduced.test} == {cell.torch for cell in full.test}
    assert {cell.machine for cell in reduced.wheel} == {cell.machine for cell in full.wheel}
    assert {cell.label for cell in reduced.wheel} == {str(label) for label in KNOWN.event("pr").labels}
    for few, many in ((reduced.device, full.device), (reduced.wheel, full.wheel), (reduced.test, full.test)):
        assert len(few) < len(many)


def test_every_abi_of_torch_is_tested_where_it_exists() -> None:
    wanted = {
        (machine, str(KNOWN.binding_of(release, build)))
        for release in KNOWN.releases
        for machine, builds in release.builds.items()
        for build in builds
    }
    for the_plan in PLANS.values():
        assert {(cell.machine, cell.abi) for cell in the_plan.test} == wanted
        assert {(cell.machine, cell.abi) for cell in the_plan.host} == wanted


def test_every_test_asks_for_a_build_that_torch_has() -> None:
    by_version = {release.version: release for release in KNOWN.releases}
    for cell in PLANS["release"].test:
        release = by_version[cell.torch]
        (build,) = (build for build in release.builds[cell.machine] if build.name == cell.build)
        assert str(KNOWN.binding_of(release, build)) == cell.abi
        assert cell.python in map(str, release.pythons[cell.machine])
        assert cell.index == f"{KNOWN.torch_index}/{cell.build}"


def test_the_json_holds_what_can_be_built_and_names_the_rest() -> None:
    for the_plan in PLANS.values():
        document = json.loads(plan.as_json(the_plan))
        jobs = {job["name"] for found in document["matrices"].values() for job in found["include"]}
        missing = {entry["name"]: entry["not_built"] for entry in document["not_built"]}
        assert jobs | set(missing) == {cell.name for cell in the_plan.cells} and not jobs & set(missing)
        assert all(missing.values())
        for name, cells_of in the_plan.matrices().items():
            built = [dataclasses.asdict(cell) for cell in cells_of if not cell.not_built]
            wanted = [{key: value for key, value in cell.items() if key != "not_built"} for cell in built]
            assert document["matrices"][name]["include"] == json.loads(json.dumps(wanted))
        assert (document["event"], document["only_torch"]) == (the_plan.event, the_plan.only_torch)
        assert document["gpu"] == {"runner": KNOWN.gpu_runner}
        assert document["sdist"] == {"runner": KNOWN.runners["x86_64"]}


def test_a_slim_plan_serves_one_torch() -> None:
    slim = expand(KNOWN, KNOWN.event("release"), "2.6")
    assert {cell.abi for cell in slim.host} == {"torch-table-1", "torch-2.6-cxx0", "torch-2.6-cxx1"}
    assert {cell.torch for cell in slim.test} == {"2.6.0"}
    assert {name for cell in slim.wheel for name in (*cell.host, *cell.lacks)} == {cell.name for cell in slim.host}
    assert len(slim.wheel) == len(PLANS["release"].wheel)


@pytest.mark.wheel
@pytest.mark.parametrize("spec", [spec for spec in KNOWN.labels if spec.nvrtc], ids=lambda spec: spec.name)
def test_the_kept_answers_are_those_of_the_real_nvrtc(spec: matrix.LabelSpec) -> None:
    assert nvrtc.ask(spec) == spec.reports


def without(the_plan: Plan, name: str) -> Plan:
    return dataclasses.replace(the_plan, host=tuple(cell for cell in the_plan.host if cell.name != name))


def test_a_plan_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = PLANS["release"]
    cells.check(good)
    with pytest.raises(PlanError, match="has the cell wheel-cu121-x86_64 twice"):
        cells.check(dataclasses.replace(good, wheel=(*good.wheel, good.wheel[0])))
    with pytest.raises(PlanError, match=r"wheel-cu121-x86_64 needs host-kernels-x86_64, which no cell makes"):
        cells.check(without(good, "host-kernels-x86_64"))
    with pytest.raises(PlanError, match="needs wheel-cpu-aarch64"):
        cells.check(dataclasses.replace(good, wheel=tuple(w for w in good.wheel if w.name != "wheel-cpu-aarch64")))
    monkeypatch.setattr(cells, "MAX_JOBS", 100)
    with pytest.raises(PlanError, match=r"\d+ jobs in test-x86_64, GitHub runs at most 100"):
        cells.check(good)


def test_what_is_built_later_joins_the_wheels() -> None:
    """The adapters are one entry in matrix.toml away from the jobs."""
    builds = {KNOWN.binding_of(release, build) for release in KNOWN.releases for build in release.builds["x86_64"]}
    machines = tuple(dataclasses.replace(machine, not_built=None) for machine in KNOWN.machine_specs)
    labels = tuple(dataclasses.replace(spec, not_built=None) for spec in KNOWN.labels)
    done: Matrix = dataclasses.replace(KNOWN, classic_built=tuple(builds), machine_specs=machines, labels=labels)
    complete = expand(done, done.event("release"))
    assert not [cell.name for cell in complete.cells if cell.not_built]
    assert not [cell.name for cell in complete.wheel if cell.lacks]
    assert [cell.name for cell in complete.cells] == [cell.name for cell in PLANS["release"].cells]


def test_the_verb_prints_and_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path, checkout: Path) -> None:
    assert tools_main.main(["plan", "--event", "pr"]) == 0
    assert capsys.readouterr().out == plan.table(PLANS["pr"])
    assert tools_main.main(["plan", "--json"]) == 0
    assert capsys.readouterr().out == plan.as_json(PLANS["release"])
    assert tools_main.main(["plan", "--event", "main", "--summary"]) == 0
    assert capsys.readouterr().out == plan_summary.of(PLANS["main"], KNOWN, evidence.load(evidence.FOLDER, KNOWN))
    assert tools_main.main(["plan", "--event", "tag"]) == 1
    assert "no event 'tag'" in capsys.readouterr().err
    assert tools_main.main(["plan", "--only-torch", "2.3"]) == 1
    assert "no torch '2.3'; it has: 2.4, 2.5" in capsys.readouterr().err
    text = (checkout / "matrix.toml").read_text()
    (tmp_path / "matrix.toml").write_text(
        text.replace("{ cpu = 1, cu130 = 1, cu132 = 1 }  ", "{ cpu = 1, cu132 = 1, cu199 = 1 }  ")
    )
    assert tools_main.main(["plan", "--matrix", str(tmp_path / "matrix.toml")]) == 1
    assert "torch 2.15.0 on x86_64: no label fits its build cu199" in capsys.readouterr().err


def test_turns_hand_out_what_was_met_least() -> None:
    turns = cells._Turns()
    assert [turns.next("abc"), turns.next("ab"), turns.next("abc"), turns.next("ab")] == ["a", "b", "c", "a"]


def test_the_default_is_the_wheel_without_a_label() -> None:
    assert (cells.label_of("default"), cells.label_of("cu130")) == (Label(""), Label("cu130"))
    assert all(isinstance(cell, TestCell) for cell in PLANS["pr"].test)
