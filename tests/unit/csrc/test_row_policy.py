"""The policy for rows that a cluster shares: every choice can be launched and holds the row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import spawn

pytestmark = pytest.mark.compiler

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"
STATIC = 2 * 1024  # launch.h, kStaticSharedBytes


def test_every_choice_can_be_launched_and_holds_the_row(tmp_path: Path) -> None:
    source, left_open = HERE / "row_policy.cpp", "-Wl,--unresolved-symbols=ignore-all"
    program = spawn.program(tmp_path / "row_policy", f"-I{CSRC}", source, left_open)
    lines = spawn.run(program).stdout.splitlines()
    assert len(lines) > 5_000
    few, many = (tuple(map(int, line.split()[4:6])) for line in lines[:2])
    assert few == (480, 7), "32 rows of 151936: two blocks on a multiprocessor, so that all clusters find room"
    assert many == (896, 2), "2048 rows of 100352: a block has a multiprocessor to itself"
    refused = 0
    for line in lines:
        room, rows, each, vectors, threads, cluster, shared = map(int, line.split())
        if threads == 0:
            refused += 1
            assert room < 200 * 1024, f"{line}: a GPU with 227 KB has room for every row"
            continue
        assert 32 <= threads <= 1024, line
        assert threads % 32 == 0, line
        assert 1 <= cluster <= 8, line
        assert threads * cluster * each >= vectors, line
        assert shared <= room - STATIC, line
        assert rows > 132 or threads <= 512 or vectors > 512 * cluster * each, "few rows take smaller blocks"
    assert 0 < refused < len(lines) // 2
