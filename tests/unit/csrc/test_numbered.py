"""What an op keeps from one call to the next: used by one thread at a time, and gone when nobody uses it any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import spawn

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"
PROBE = HERE / "numbered_probe.cpp"


@pytest.mark.compiler
def test_values_by_number_are_used_one_at_a_time_and_live_as_long_as_they_are_used(tmp_path: Path) -> None:
    program = spawn.program(tmp_path / "probe", "-pthread", f"-I{CSRC}", PROBE)
    line = spawn.run(program, status=None).returncode
    assert line == 0, PROBE.read_text().splitlines()[line - 1]
