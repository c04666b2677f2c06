"""Extensions of installed packages, found by their entry points, which a loader reads on first use.

A package declares in its pyproject.toml which loader gets which class::

    [project.entry-points."precast.extensions"]
    "CPUAdamLoader.my_adam" = "my_package.adam:MyAdamExtension"
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from precast.core.value import value

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "precast.extensions"


@value(frozen=True)
class Announced:
    """One entry point: the class it names and the package that declares it."""

    loader: str
    name: str
    target: str
    package: str

    @property
    def origin(self) -> str:
        """The package and class, as text."""
        return f"{self.package} ({self.target})"

    def load(self) -> Any:
        """Imports and returns the class. Exceptions of its module are passed on."""
        module, _, attribute = self.target.partition(":")
        return functools.reduce(getattr, filter(None, attribute.split(".")), import_module(module))


def announced(loaders: Iterable[str]) -> tuple[Announced, ...]:
    """The entry points for any of the loaders, ordered by package name."""
    wanted = set(loaders)
    return tuple(one for one in _all() if one.loader in wanted)


def strays(loaders: Iterable[str]) -> tuple[Announced, ...]:
    """The entry points for loaders that do not exist."""
    known = set(loaders)
    return tuple(one for one in _all() if one.loader not in known)


@functools.cache
def _all() -> tuple[Announced, ...]:
    from importlib.metadata import entry_points  # takes 20 ms to import, and reads the metadata of every package

    return tuple(sorted((_announced(entry) for entry in entry_points(group=GROUP)), key=lambda one: one.package))


def _announced(entry: EntryPoint) -> Announced:
    loader, _, name = entry.name.partition(".")
    return Announced(loader, name, entry.value, entry.dist.name if entry.dist is not None else "an unknown package")
