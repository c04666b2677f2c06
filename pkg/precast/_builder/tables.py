"""Read TOML tables strictly: each key is taken once, and a key that was not taken is an error that names its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from precast.errors import KernelError

try:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
except ModuleNotFoundError as error:  # an installed wheel reads TOML only where it builds other packages
    from precast.core import pip

    fix = f"{pip.install_command()} tomli"
    raise KernelError("TOML cannot be read", found=str(error), needed="the module tomli", fix=fix) from error

T = TypeVar("T")


class MatrixError(KernelError):
    """matrix.toml or a description has an invalid entry; the message names the place."""


def read_toml(path: Path) -> dict[str, Any]:
    """A file as plain values; MatrixError if it cannot be read."""
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # not TOML, or not UTF-8
        raise MatrixError(f"{path}: {error}") from error
    return document


class Table:
    """One table being read; ``where`` is its name in messages."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = dict(values)
        self.where = where

    def take(self, key: str, kind: type[T]) -> T:
        """The value of a required key, of exactly that type."""
        if key not in self.values:
            raise MatrixError(f"{self.where}: {key} is missing")
        value = self.values.pop(key)
        if type(value) is not kind:  # exact, so that a bool is not an int
            raise MatrixError(f"{self.where}.{key}: needed {kind.__name__}, found {value!r}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The value of a key, or None if it is missing."""
        return self.take(key, kind) if key in self.values else None

    def table(self, key: str) -> Table:
        """A table inside this one."""
        return Table(self.take(key, dict), f"{self.where}.{key}")

    def tables(self, key: str, name: str) -> tuple[Table, ...]:
        """A list of tables, each identified by its value of ``name``."""
        found = self.take(key, list)
        if not all(isinstance(values, dict) for values in found):
            raise MatrixError(f"{self.where}.{key}: needed a list of tables, found {found!r}")
        return tuple(Table(values, f"{self.where}.{key}[{values.get(name)}]") for values in found)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self.take(key, list)
        if not all(isinstance(value, str) for value in values):
            raise MatrixError(f"{self.where}.{key}: needed a list of texts, found {values!r}")
        return tuple(values)

    def parsed(self, key: str, parser: Callable[[str], T]) -> T:
        """A text, parsed."""
        return self.parse(key, self.take(key, str), parser)

    def all_parsed(self, key: str, parser: Callable[[str], T]) -> tuple[T, ...]:
        """A list of texts, each parsed."""
        return tuple(self.parse(key, text, parser) for text in self.texts(key))

    def parse(self, key: str, text: str, parser: Callable[[str], T]) -> T:
        """The parsed text of this key; a ValueError of the parser becomes a MatrixError with the place."""
        try:
            return parser(text)
        except ValueError as error:
            raise MatrixError(f"{self.where}.{key}: {error}") from error

    def finish(self) -> None:
        """Raise MatrixError if a key was not taken."""
        if self.values:
            raise MatrixError(f"{self.where}: unknown keys: {', '.join(sorted(self.values))}")
