"""What the pages promise about themselves: their length, one rule for labels, and figures of commits that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from precast._builder import matrix
from precast.errors import KernelError
from tools.shared import speed
from tools.verbs import tables

ROOT = Path(__file__).resolve().parents[3]
MOST_WORDS = 20_000  # in docs/, as `wc -w` counts them, tables included
LONG_FOR_A_DECISION = 300
LABELLED = ("README.md", "docs/README.md", "docs/questions.md", "docs/guides/install.md", "docs/guides/ci.md")


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_the_documentation_does_not_grow_unnoticed() -> None:
    assert sum(map(words, (ROOT / "docs").rglob("*.md"))) <= MOST_WORDS
    long = {path.name: words(path) for path in (ROOT / "docs" / "decisions").glob("*.md")}
    assert {name: count for name, count in long.items() if count >= LONG_FOR_A_DECISION} == {}


@pytest.mark.parametrize("page", LABELLED)
def test_commands_name_the_labels_that_the_rule_names(page: str) -> None:
    known = re.findall(r"`(\w+)`", tables.rule(matrix.load(ROOT / "matrix.toml")))
    assert known == ["cu132", "cu129", "cpu"]
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"(?:PRECAST_LABEL=|\+|--label |/)(cu\d{3})\b", text)
    assert set(named) <= set(known)


def test_the_rule_follows_the_matrix() -> None:
    rule = tables.rule(matrix.load(ROOT / "matrix.toml"))
    assert "`cu132` for CUDA 13 drivers, `cu129` for CUDA 12 drivers or compute capability 7.0" in rule
    for page in ("README.md", "docs/questions.md", "docs/guides/install.md"):
        assert rule in (ROOT / page).read_text(encoding="utf-8")


def test_figures_of_a_commit_with_changes_are_refused(tmp_path: Path) -> None:
    kept = json.loads((ROOT / speed.FILE).read_text(encoding="utf-8"))
    assert speed.sentence(speed.read(ROOT / speed.FILE)) in (ROOT / "README.md").read_text(encoding="utf-8")
    for commit in ("9882ee1-dirty", "", None):
        kept["facts"]["build"]["commit"] = commit
        (tmp_path / "kept.json").write_text(json.dumps(kept))
        with pytest.raises(KernelError, match="a wheel of a commit without changes"):
            speed.read(tmp_path / "kept.json")
