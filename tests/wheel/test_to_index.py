"""From the wheel that pip makes to an index: the commands that a refusal prints work when pasted."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import Run

pytestmark = [pytest.mark.wheel, pytest.mark.compiler]


def test_what_is_printed_for_a_wheel_of_pip_makes_the_index(
    run: Run, tree: Path, built: Mapping[str, Path], tmp_path: Path
) -> None:
    wheel = built["cpu"]
    site = tmp_path / "build" / "site"
    command = [sys.executable, "-m", "tools", "index", wheel.parent, "--out", site]
    said = run(*command, expect=1, PYTHONPATH=tree).stderr
    assert said.startswith(f"{wheel.name} promises nothing to other machines") and not site.exists()
    printed = re.findall(r"^ .*\d\) (.+)$", said, re.MULTILINE)
    assert len(printed) == 2
    script = f'cd "$1"; PATH="{Path(sys.executable).parent}:$PATH"\n' + "\n".join(printed)
    run("bash", "-euc", script, "bash", tmp_path, PYTHONPATH=tree)
    (served,) = (site / "cpu").rglob("*.whl")
    assert "manylinux_2_28" in served.name
