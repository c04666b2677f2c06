"""The commit that a build is made from: asked of git in a checkout, read from its record in an sdist."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

FACTS_FILE = "source.json"  # in an sdist: git's answers at the time it was made


@dataclass(frozen=True, slots=True)
class Provenance:
    """The commit, or None if unknown; ``dirty`` if the tree differs from it or may differ.

    ``epoch`` is the time of the commit, in seconds since 1970. Every file of a release gets this time.
    """

    commit: str | None
    dirty: bool
    epoch: int | None = None


def of(root: Path) -> Provenance:
    """Ask git if ``root`` is the top of a checkout, not just somewhere inside one; otherwise read the sdist's record.

    An unpacked source archive has neither; ``git archive`` gives its files the time of the commit.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is not None and Path(top).resolve() == root.resolve():
        said, moment = _git(root, "rev-parse", "HEAD"), _git(root, "log", "-1", "--format=%ct")
        return Provenance(said, _git(root, "status", "--porcelain") != "", int(moment) if moment else None)
    try:
        known = json.loads((root / FACTS_FILE).read_bytes())
    except FileNotFoundError:
        project = root / "pyproject.toml"
        return Provenance(None, True, int(project.stat().st_mtime) if project.is_file() else None)
    return Provenance(known["commit"], bool(known["dirty"]), known.get("epoch"))


def record(facts: Provenance, tree: Path) -> None:
    """Write the facts of a checkout into the tree of its sdist."""
    text = json.dumps({"commit": facts.commit, "dirty": facts.dirty, "epoch": facts.epoch}, indent=1) + "\n"
    (tree / FACTS_FILE).write_text(text, encoding="utf-8")


def _git(root: Path, *arguments: str) -> str | None:
    """Git's answer, or None without git or outside a checkout."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
