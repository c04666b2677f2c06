"""One cell with all that belongs to it, and the plan as outputs of a workflow step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precast._builder import matrix
from tools import __main__ as tools_main
from tools.shared.cells import PlanError, expand
from tools.shared.one_cell import narrow
from tools.verbs.plan import as_outputs

KNOWN = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
RELEASE = expand(KNOWN, KNOWN.event("release"))
WHEEL = next(cell for cell in RELEASE.wheel if not cell.not_built and cell.device)


def outputs(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_wheel_brings_its_parts_and_its_tests() -> None:
    plan = narrow(RELEASE, WHEEL.name)
    assert [cell.name for cell in plan.wheel] == [WHEEL.name]
    assert {cell.name for cell in (*plan.device, *plan.host)} == {*WHEEL.device, *WHEEL.host}
    assert plan.test and {cell.wheel for cell in plan.test} == {WHEEL.name}
    assert not [cell.name for cell in plan.cells if cell.not_built]


def test_a_part_comes_alone_and_a_test_with_what_it_tests() -> None:
    part = RELEASE.device[0]
    assert narrow(RELEASE, part.name).cells == (part,)
    test = next(cell for cell in RELEASE.test if cell.wheel == WHEEL.name and not cell.not_built)
    plan = narrow(RELEASE, test.name)
    assert plan.test == (test,) and [cell.name for cell in plan.wheel] == [WHEEL.name]


def test_a_cell_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match=r"the plan for release has no cell 'wheel-cu999'.*--event release"):
        narrow(RELEASE, "wheel-cu999")
    for cell in RELEASE.cells:
        if cell.not_built:
            with pytest.raises(PlanError, match="cannot be built yet"):
                narrow(RELEASE, cell.name)
    assert tools_main.main(["plan", "--cell", "wheel-cu999"]) == 1
    assert "no cell 'wheel-cu999'" in capsys.readouterr().err


def test_the_outputs_hold_every_matrix_if_only_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "outputs"
    file.write_text("before=1\n")
    # What a workflow passes on when its form was left empty.
    assert tools_main.main(["plan", "--event", "pr", "--cell", "", "--only-torch", "", "--outputs", str(file)]) == 0
    found = outputs(file.read_text())
    assert found.pop("before") == "1" and capsys.readouterr().out
    assert found.pop("sdist") == KNOWN.runners["x86_64"] and found.pop("gpu") == KNOWN.gpu_runner
    plan = expand(KNOWN, KNOWN.event("pr"))
    assert set(found) == {"device", "host", "wheel", *(f"test-{machine}" for machine in KNOWN.machines)}
    for name, cells in plan.matrices().items():
        jobs = json.loads(found[name])["include"]
        assert [job["name"] for job in jobs] == [cell.name for cell in cells if not cell.not_built]
    alone = outputs(as_outputs(narrow(plan, plan.device[0].name), KNOWN))
    assert {name for name in found if json.loads(alone[name])["include"]} == {"device"}
