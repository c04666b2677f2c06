"""The public names of ``ops``, ``optim`` and ``nn``, and the kernel families that each may load.

The families' descriptions say it, so that the command line need not import torch. A test follows each name through the
sources to the ops that it calls.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from precast._builder.catalogue import FAMILIES, FOLDERS

ROOMS = tuple(f"precast.{room}" for room in ("ops", "optim", "nn"))
OPS = ROOMS[0]


def families_of(name: str) -> tuple[str, ...]:
    """The families that a public name or its gradient may load, in the catalogue's order."""
    return _named()[name][1]


def rooms() -> Mapping[str, str]:
    """Each public name with the module to import it from."""
    return {name: room for name, (room, _) in _named().items()}


@functools.cache
def _named() -> Mapping[str, tuple[str, tuple[str, ...]]]:
    groups = [group for folder in FOLDERS for group in folder.public_names]
    return {
        name: (room, tuple(family.name for family in FAMILIES if family.name in families))
        for room in ROOMS
        for name, families in sorted(
            (name, group.families) for group in groups for name in getattr(group, room.rpartition(".")[2])
        )
    }
