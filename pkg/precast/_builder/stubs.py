"""The stub that tells type checkers about the lazy functions of ``precast.ops``.

A wheel has it next to the module. A checkout has none; import a function from its folder there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precast._builder.catalogue import Folder


def write(package: Path, folders: Sequence[Folder]) -> None:
    """Write the stub: every public function, with its types from its folder."""
    given = [(folder.name, name) for folder in folders for name in folder.public]
    lines = [f"from precast.ops.{folder} import {name} as {name}" for folder, name in given]
    names = "".join(f"    {name!r},\n" for name in sorted(name for _, name in given))
    text = "\n".join([*lines, "", f"__all__ = [\n{names}]", "", "def define(name: str) -> None: ...", ""])
    (package / "ops" / "__init__.pyi").write_text(text, encoding="utf-8")
