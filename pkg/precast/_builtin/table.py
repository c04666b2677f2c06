"""The extensions that come with the package: one table of rows, and one class for each row.

A row gives an extension's loader, its name, and its content. Rows are derived from the families' descriptions and from
the modules of the older package.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TypeAlias

from precast._builder import catalogue
from precast._builder.catalogue import Family, Offer
from precast._builtin import flash_attention
from precast._builtin.families import (
    DeviceExtension,
    FamilyExtension,
    HostExtension,
    ReferenceExtension,
)
from precast._builtin.twins import TwinExtension
from precast.compat import loaders as older
from precast.compat import modules
from precast.compat.modules import Members
from precast.extension.base import Extension
from precast.extension.torch_reference import LOWEST

Builtin: TypeAlias = type[HostExtension] | type[DeviceExtension] | type[TwinExtension] | type[ReferenceExtension]
_AFTER_A_TWIN = -1  # on GPUs with only Triton kernels, those come before the CPU kernels


@dataclasses.dataclass(frozen=True)
class Row:
    """One extension. ``machine`` is a value of platform.machine(), None for any."""

    loader: str
    name: str
    kind: Builtin
    families: tuple[Family, ...] = ()
    folders: tuple[str, ...] = ()  # folders of precast.ops that provide members
    machine: str | None = None
    place: int = 1  # the priority

    @functools.cached_property
    def members(self) -> Members:
        """Members of the folders, then of the older package. Imported only on load, because they need torch."""
        from precast.ops import _folders

        plain = self.kind is ReferenceExtension
        found = [_folders.members(folder, plain=plain) for folder in self.folders]
        found.append(older.members(self.loader, modules.reference if plain else modules.kernel))
        return {name: member for one in found for name, member in one.items()}


def _rows(offer: Offer, families: tuple[Family, ...], folders: tuple[str, ...] = ()) -> Iterator[Row]:
    """Rows for the GPU kernels, their Triton twins and the CPU kernels, as far as they exist, and for plain torch."""
    name, stem = offer.name, offer.extensions
    if all("cuda" in family.devices for family in families):
        yield Row(name, f"{stem}_cuda", DeviceExtension, families, folders)
    if all(family.twins for family in families):
        yield Row(name, f"{stem}_triton", TwinExtension, families, folders, place=0)
    if all("cpu" in family.devices for family in families):
        for suffix, machine in offer.machines:
            yield Row(name, f"{stem}_{suffix}", HostExtension, families, folders, machine)
        if not offer.machines:
            yield Row(name, f"{stem}_cpu", HostExtension, families, folders, place=_AFTER_A_TWIN)
    yield Row(name, f"{stem}_torch", ReferenceExtension, families, folders, place=LOWEST)


def _of_families() -> Iterator[Row]:
    """The rows of the families. A folder that joins a loader comes after the folder that describes the loader."""
    offering = [(folder, folder.loader) for folder in catalogue.FOLDERS if folder.loader is not None]
    for folder, offer in offering:
        if offer.extensions:
            joining = [other for other, to in offering if to.name == offer.name and not to.extensions]
            joined = (folder, *joining)
            families = tuple(family for one in joined for family in one.families)
            yield from _rows(offer, families, tuple(one.name for one in joined))


_OFFERED = tuple(_of_families())
TABLE: tuple[Row, ...] = (
    *_OFFERED,
    # The modules of the older package that precast replaces, with its functions.
    *(row for offer, names in older.OFFERS for row in _rows(offer, tuple(map(catalogue.get, names)))),
)


def _make(row: Row) -> Builtin:
    words = "".join(part.title() for part in row.name.split("_"))
    attributes = {
        "__module__": __name__,
        "__doc__": f"{row.name}, of {row.loader}.",
        "extension_name": row.name,
        "families": row.families,
        "machine": row.machine,
        "place": row.place,
        "members": property(lambda _: row.members),
    }
    made: Builtin = type(f"{words}Extension", (row.kind,), attributes)
    return made


BUILTIN: tuple[Builtin, ...] = tuple(_make(row) for row in TABLE)


def get(name: str) -> Builtin:
    """The class of the extension with this name; KeyError if it is not built in."""
    return {extension.extension_name: extension for extension in BUILTIN}[name]


def of(loader: str) -> list[type[Extension]]:
    """The built-in extensions of a loader, in the order of the table."""
    ours: list[type[Extension]] = [cls for row, cls in zip(TABLE, BUILTIN, strict=True) if row.loader == loader]
    return ours + flash_attention.of(loader)


def names_of(loader: str) -> list[str]:
    """The names of the built-in extensions of a loader."""
    rows = [row.name for row in TABLE if row.loader == loader]
    return rows + [cls.extension_name for cls in flash_attention.ALL if loader in cls.loaders]


def main_rows() -> tuple[type[FamilyExtension], ...]:
    """The extensions with kernels, for the loaders that families describe, so that each kernel appears once."""
    offered = BUILTIN[: len(_OFFERED)]
    return tuple(cls for cls in offered if issubclass(cls, FamilyExtension))
