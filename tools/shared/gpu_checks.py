"""What each kind of GPU has seen: the results of ``python -m tests.gpu check`` that are kept in docs/evidence/gpu."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from precast.errors import KernelError

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "gpu"
SCHEMA = 1


def rows(folder: Path = FOLDER) -> list[tuple[str, ...]]:
    """A row for each file: GPUs, commit, torch, what passed, what did not, minutes. KernelError for a bad one."""
    return [_row(path) for path in sorted(folder.glob("*.json"))]


def _row(path: Path) -> tuple[str, ...]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        machine, results = known["machine"], known["results"]
        if known["schema"] != SCHEMA or "dirty" in machine["commit"]:
            raise ValueError(f"schema {known['schema']}, commit {machine['commit']}")
        failed = [f"{one['name']} ({one['outcome']})" for one in results if one["outcome"] != "ok"]
        minutes = f"{sum(one['seconds'] for one in results) / 60:.0f}"
        gpus = f"{machine['gpus']} x {machine['gpu']}"
        passed = f"{len(results) - len(failed)} of {len(results)}: {_tests(results)} tests"
        return gpus, f"`{machine['commit']}`", machine["torch"], passed, ", ".join(failed) or "none", minutes
    except (KeyError, TypeError, ValueError) as error:
        needed = f"what python -m tests.gpu check --json wrote of a clean commit, schema {SCHEMA}"
        raise KernelError(f"{path} is no kept check", found=str(error), needed=needed) from error


def _tests(results: list[dict[str, Any]]) -> int:
    return sum(_counts(results))


def _counts(results: list[dict[str, Any]]) -> Iterator[int]:
    for one in results:
        words = one["said"].replace(",", "").split()
        yield from (int(count) for count, word in itertools.pairwise(words) if word == "passed")
