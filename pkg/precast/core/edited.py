"""Say that a module of an editable install is older than its sources, with the command that builds it again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from .errors import block

# What an editable install adds to a guard, and to the module of device code.
LINE = """
from {core}.edited import editable
editable(__name__, __file__, {root!r}, {sources!r})
"""


def editable(module: str, file: str, root: str, sources: Sequence[str]) -> None:
    """Warn if a source in the project at ``root`` was edited after ``file``, which each install writes again."""
    built = Path(file).stat().st_mtime
    for source in (Path(root, name) for name in sources):
        if source.is_file() and source.stat().st_mtime > built:
            from . import pip

            command = f"{pip.install_command()} --no-build-isolation --no-deps --editable {root}"
            warnings.warn(block(f"{module} is older than {source}", fix=command), stacklevel=2)
            return
