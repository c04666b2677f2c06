"""The stub of ``precast.ops`` for type checkers, made from the descriptions: at run time its functions are looked up.

A wheel has it beside the module, where it stands for it. A checkout has none: import a function from its folder there.
"""

from __future__ import annotations

from collections.abc import Iterable

from precast._builder.catalogue import Folder

PLACE = "ops/__init__.pyi"


def of_ops(folders: Iterable[Folder]) -> str:
    """Every public function, with the types that its folder gives it."""
    given = [(folder.name, name) for folder in folders for name in folder.public]
    lines = [f"from precast.ops.{folder} import {name} as {name}" for folder, name in given]
    names = "".join(f"    {name!r},\n" for name in sorted(name for _, name in given))
    return "\n".join([*lines, "", f"__all__ = [\n{names}]", "", "def define(family: str) -> None: ...", ""])
