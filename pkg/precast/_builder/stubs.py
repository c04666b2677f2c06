"""Stubs that tell type checkers about lazy names: the functions of ``precast.ops`` and the families' loaders.

A wheel has them next to the modules. A checkout has none; import a function from its folder there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from precast._builder.catalogue import Folder

OPS, LOADERS = "ops/__init__.pyi", "kernel_loader.pyi"


def write(package: Path, folders: Sequence[Folder]) -> None:
    """Write both stubs next to their modules."""
    source = (package / "kernel_loader.py").read_text(encoding="utf-8")
    (package / OPS).write_text(of_ops(folders), encoding="utf-8")
    (package / LOADERS).write_text(of_loaders(source, folders), encoding="utf-8")


def of_loaders(source: str, folders: Iterable[Folder]) -> str:
    """The source of the module, plus a class for each family's loader. Type checkers ignore the bodies in a stub."""
    names = [folder.loader.name for folder in folders if folder.loader is not None and folder.loader.about]
    return source + "".join(f"\n\nclass {name}(KernelLoader): ...\n" for name in names)


def of_ops(folders: Iterable[Folder]) -> str:
    """Every public function, with its types from its folder."""
    given = [(folder.name, name) for folder in folders for name in folder.public]
    lines = [f"from precast.ops.{folder} import {name} as {name}" for folder, name in given]
    names = "".join(f"    {name!r},\n" for name in sorted(name for _, name in given))
    return "\n".join([*lines, "", f"__all__ = [\n{names}]", "", "def define(name: str) -> None: ...", ""])
