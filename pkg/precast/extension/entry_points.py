"""Extensions of installed packages, by their entry points: read at the first question to a loader, never by an op.

A package says in its pyproject.toml which loader gets which class::

    [project.entry-points."precast.extensions"]
    "CPUAdamLoader.my_adam" = "my_package.adam:MyAdamExtension"
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from precast._abi.value import value

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "precast.extensions"


@value(frozen=True)
class Announced:
    """One entry point: the class it names and the package that has it."""

    loader: str
    name: str
    target: str
    package: str

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f"{self.package} ({self.target})"

    def load(self) -> Any:
        """The class; whatever its module raises."""
        module, _, attribute = self.target.partition(":")
        return functools.reduce(getattr, filter(None, attribute.split(".")), import_module(module))


def announced(loaders: Iterable[str]) -> tuple[Announced, ...]:
    """What is announced for any of the loaders, in the order of the packages' names."""
    wanted = set(loaders)
    return tuple(one for one in _all() if one.loader in wanted)


def strays(loaders: Iterable[str]) -> tuple[Announced, ...]:
    """What is announced for a loader that does not exist."""
    known = set(loaders)
    return tuple(one for one in _all() if one.loader not in known)


@functools.cache
def _all() -> tuple[Announced, ...]:
    from importlib.metadata import entry_points  # takes 20 ms to import, and reads the metadata of every package

    return tuple(sorted((_announced(entry) for entry in entry_points(group=GROUP)), key=lambda one: one.package))


def _announced(entry: EntryPoint) -> Announced:
    loader, _, name = entry.name.partition(".")
    return Announced(loader, name, entry.value, entry.dist.name if entry.dist is not None else "an unknown package")
