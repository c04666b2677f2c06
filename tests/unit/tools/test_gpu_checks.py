"""The table of what GPUs have seen is what the kept results say, of clean commits alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precast.errors import KernelError
from tests.gpu import check
from tools.shared import gpu_checks

HERE = check.Machine("0123456789ab", "NVIDIA H100", 2, "2.11.0+cu130")
RESULTS = [
    check.Result("tests: ops 1 of 6", "ok", 90.0, "595 passed, 3 skipped in 88.10s", "a.log"),
    check.Result("hostile 1 of 6", "hung", 240.0, "no end after 240 s; last line: 7", "b.log"),
]


def test_a_row_says_what_passed_and_what_did_not(tmp_path: Path) -> None:
    check.keep(tmp_path / "h100.json", HERE, RESULTS)
    assert gpu_checks.rows(tmp_path) == [
        ("2 x NVIDIA H100", "`0123456789ab`", "2.11.0+cu130", "1 of 2: 595 tests", "hostile 1 of 6 (hung)", "6")
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"schema": 2}, "schema 2"), ({"machine": {"commit": "0123-dirty"}}, "dirty"), ({"results": 1}, "")],
)
def test_what_is_no_result_of_a_clean_commit_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    check.keep(tmp_path / "h100.json", HERE, RESULTS)
    path = tmp_path / "h100.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(KernelError, match=f"(?s)h100.json is no kept check.*{said}"):
        gpu_checks.rows(tmp_path)
