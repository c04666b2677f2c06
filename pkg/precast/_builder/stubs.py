"""Stubs for type checkers of what is looked up at run time: the functions of ``precast.ops``, the families' loaders.

A wheel has them beside the modules. A checkout has none: there, import a function from its folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from precast._builder.catalogue import Folder

OPS, LOADERS = "ops/__init__.pyi", "kernel_loader.pyi"


def write(package: Path, folders: Sequence[Folder]) -> None:
    """Puts both stubs beside the modules that they stand for."""
    source = (package / "kernel_loader.py").read_text(encoding="utf-8")
    (package / OPS).write_text(of_ops(folders), encoding="utf-8")
    (package / LOADERS).write_text(of_loaders(source, folders), encoding="utf-8")


def of_loaders(source: str, folders: Iterable[Folder]) -> str:
    """The module itself, whose bodies no type checker reads in a stub, with a class for each family's loader."""
    names = [folder.loader.name for folder in folders if folder.loader is not None and folder.loader.about]
    return source + "".join(f"\n\nclass {name}(KernelLoader): ...\n" for name in names)


def of_ops(folders: Iterable[Folder]) -> str:
    """Every public function, with the types that its folder gives it."""
    given = [(folder.name, name) for folder in folders for name in folder.public]
    lines = [f"from precast.ops.{folder} import {name} as {name}" for folder, name in given]
    names = "".join(f"    {name!r},\n" for name in sorted(name for _, name in given))
    return "\n".join([*lines, "", f"__all__ = [\n{names}]", "", "def define(family: str) -> None: ...", ""])
