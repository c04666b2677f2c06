"""tests/ATTACKS.md names tests: each of them exists, and every fault of the GPU side is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults import ROWS, devices
from tests.fuzz import __main__ as fuzzing

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "ATTACKS.md"


def rows(text: str) -> list[tuple[str, list[str]]]:
    """The attacks of a page, each with the tests in its last column."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [(row[0], re.findall(r"`([^`]+)`", row[-1])) for row in cells if row[0] not in {"Attack", "---"}]


def missing(name: str) -> bool:
    """Whether there is no such test."""
    kind, colon, ident = name.partition(":")
    if not colon:
        return not (ROOT / name).is_file()
    if kind == "gpu":
        said = (ROOT / "tests" / "gpu" / "attacks.py").read_text(encoding="utf-8")
        return f'"{re.sub("[0-9]+$", "{number}", ident)}"' not in said and f'"{ident}"' not in said
    return ident not in {"fault": {row.id for row in ROWS}, "fuzz": set(fuzzing.TARGETS)}[kind]


FOUND = rows(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("attack", "tests"), FOUND, ids=[attack[:40] for attack, _ in FOUND])
def test_every_test_of_the_table_exists(attack: str, tests: list[str]) -> None:
    assert tests, f"{attack}: no test"
    assert [name for name in tests if missing(name)] == []


def test_every_fault_of_the_gpu_side_is_in_the_table() -> None:
    named = {name for _, tests in FOUND for name in tests}
    unnamed = {row.id for row in ROWS if row.inject.__module__ == devices.__name__ and f"fault:{row.id}" not in named}
    assert unnamed == {"driver-no-image", "driver-no-ptx"}  # what the driver says of damaged code, which gpu: shows


def test_a_test_that_is_not_there_is_found() -> None:
    said = "| a | b | `fault:no-such` `fuzz:nothing` `gpu:none` `tests/none.py` |"
    ((_, tests),) = rows(said)
    assert [name for name in tests if missing(name)] == tests


def test_there_are_sixty_faults() -> None:
    assert len(ROWS) >= 60
