"""Every row of the fault table, and that the table cannot be all green by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import ROWS
from tests.faults.__main__ import run
from tests.faults.lab import Fault, Lab, NotRun
from tests.load.conftest import Site

# The families of the table: those of all would take longer than the faults.
DOCTOR = """
import sys
sys.argv[1:] = ["doctor", "cpu_adam", "rms_norm"]
from precast.__main__ import main
sys.exit(main())
"""


def assert_diagnosed(site: Site, env: dict[str, str]) -> None:
    """The doctor is for broken installations: it says what is wrong with this one, and none of its errors leaves it."""
    done = site.run(DOCTOR, env=env)
    assert done.stdout.startswith(("OK", "PROBLEM")), (done.stdout, done.stderr)
    assert done.returncode == done.stdout.startswith("PROBLEM") and "Error" not in done.stderr, done.stderr


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("row", [row for row in ROWS if not row.slow], ids=lambda row: row.id)
def test_the_fault_is_survived(row: Fault, lab: Lab) -> None:
    made = len(lab.sites)
    lab.env.clear()
    try:
        assert row.inject(lab)
        for site in lab.sites[made:]:
            assert_diagnosed(site, lab.env)
    except NotRun as why:
        if row.id != "full-tmpfs":  # a container need not allow a mount; the two rows before it need none
            pytest.fail(f"{row.id} was not injected: {why}")


def row_that(ident: str, inject) -> Fault:
    return Fault(ident, "what", "how", "lost", inject, slow=False)


def fails(lab: Lab) -> str:
    raise AssertionError("it was not survived")


def is_not_run(lab: Lab) -> str:
    raise NotRun("there is no such machine")


def test_one_failing_row_fails_the_command_and_the_others_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row_that("one", fails), row_that("two", lambda lab: "seen"), row_that("three", is_not_run)]
    assert run(rows, tmp_path / "faults.json") == 1
    table = json.loads((tmp_path / "faults.json").read_text())
    assert [facts["result"] for facts in table] == ["FAIL", "pass", "not run"]
    said = capsys.readouterr().out
    assert "AssertionError: it was not survived" in said and "1 passed, 1 failed, 1 not run" in said


def test_a_row_that_was_not_run_is_not_one_that_passed(tmp_path: Path) -> None:
    assert run([row_that("two", lambda lab: "seen")], tmp_path / "a.json") == 0
    assert run([row_that("three", is_not_run)], tmp_path / "a.json") == 1


def test_the_table_names_what_it_should() -> None:
    wanted = """
        kill-staged kill-compiling kill-linked kill-marked kill-shown full-compile full-publish readonly-home
        no-compiler no-nvrtc torch-newer torch-2.15 torch-2.3 wrong-arch cpu-level damaged-so damaged-cubin
        damaged-manifest damaged-cache clock-back eight-cold dead-host nfs-no-flock nfs-local-flock
        header-edited unlike-gpus
    """
    assert set(wanted.split()) <= {row.id for row in ROWS}
