"""Every printed fix works: each state prints its error, the first fix is run as printed, and the op works.

docs/reference/fixes.md has a row for each state, with the first line of the error and the fix; ``--update-snapshots``
writes the rows that were run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from precast._abi import fixes
from tests.faults.fixes import STATES, Machine, Shop, State, first_fix
from tests.faults.lab import Lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "fixes.md"
HEAD = "| State | The error says first | Fix |\n| --- | --- | --- |\n"
NEEDS = [pytest.mark.torch, pytest.mark.compiler]


def marked(state: State) -> object:
    marks = [*NEEDS, *([pytest.mark.long] if state.long else []), *([pytest.mark.wheel] if state.network else [])]
    return pytest.param(state, id=state.id, marks=marks)


@pytest.fixture(scope="session")
def shop(lab: Lab) -> Shop:
    return Shop(lab)


def rows() -> dict[str, str]:
    """The rows of the page, by their first cell."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text.partition(HEAD)[2].splitlines()
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}


def row(state: State, said: str, machine: Machine) -> str:
    first = machine.plain(said.splitlines()[0])
    assert len(first) < 100, first
    first = re.sub(r": \w+ cannot be loaded for (?:cpu|cuda) \(", " (", first)
    fix = machine.plain(first_fix(said))
    shown = fix if fix == fixes.DRIVER else f"`{fix}`"
    return f"| {state.what} | {first} | {shown} |"


@pytest.mark.parametrize("state", [marked(state) for state in STATES])
def test_the_first_fix_works_as_printed(
    state: State, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    machine = Machine(shop, tmp_path)
    before = state.make(machine)
    said = machine.refusal(before)
    fix = first_fix(said)
    found = row(state, said, machine)
    if request.config.getoption("--update-snapshots"):
        write(state, found)
    assert rows().get(state.what) == found, f"--update-snapshots writes {PAGE}"
    if state.works is not None:
        assert machine.after(before, fix) == state.works


def write(state: State, found: str) -> None:
    known = rows() | {state.what: found}
    ordered = [known[one.what] for one in STATES if one.what in known]
    text = PAGE.read_text(encoding="utf-8").partition(HEAD)[0]
    PAGE.write_text(text + HEAD + "\n".join(ordered) + "\n", encoding="utf-8")


def test_the_page_has_a_row_for_each_state_and_no_other() -> None:
    assert list(rows()) == [state.what for state in STATES]
    assert len({state.id for state in STATES}) == len(STATES)


def test_no_driver_is_not_answered_with_another_torch() -> None:
    said = rows()["No NVIDIA driver, with a CPU build of torch"]
    assert "driver" in said and "pip install" not in said and "whl/" not in said


def test_no_fix_is_an_example_to_be_filled_in() -> None:
    for line in rows().values():
        fix = line.split(" | ")[-1]
        assert not re.search(r"/another|\.\.\.|<\w+>", fix), line
        assert (
            "pip install" not in fix
            or "precast" not in fix
            or "--index-url" in fix
            or "/wheels/" in fix
            or "/src/" in fix
        )


def test_the_package_manager_knows_the_compiler() -> None:
    if shutil.which("apt-cache") is None:
        return  # another system; the command is in the same table
    done = subprocess.run(["apt-cache", "show", "g++"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Package: g++" in done.stdout, done.stderr
