"""``precast list``: every public name with the kernels it may load, and the extensions of each loader."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from precast._builder import public
from precast._builder.catalogue import Family
from precast._cli import output, status

if TYPE_CHECKING:
    from precast._cli.names import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("list", help="list every public name, its kernels, and the extensions of each loader")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(run=run)


def rows() -> list[dict[str, Any]]:
    """One object per extension and family. An extension without a family, such as a third-party one, gets one too."""
    from precast import kernel_loader

    found = []
    for loader in kernel_loader.loaders():
        for extension in loader.extensions():
            facts = {
                "loader": loader.__name__,
                "extension": extension.name,
                "backend": getattr(extension, "backend", "python"),
                "device": getattr(extension, "device", "any"),
                "machine": getattr(extension, "machine", None),
                "priority": extension.priority,
                "from": loader.origin(extension.name),
            }
            families = getattr(extension, "families", ())
            found += [
                {**facts, "family": family.name, "ops": _ops(family), "names": names_of(family)} for family in families
            ]
            found += [] if families else [{**facts, "family": None, "ops": [], "names": []}]
        for broken in loader.broken():
            facts = {"loader": loader.__name__, "extension": broken.name, "backend": "broken", "device": "any"}
            facts |= {"machine": None, "priority": 0, "from": broken.origin}
            found.append({**facts, "family": None, "ops": [], "names": []})
    return found


def _ops(family: Family) -> list[str]:
    return list(family.op_names)


def names_of(family: Family) -> list[str]:
    """The public names that may load a family."""
    return [f"{room}.{name}" for name, room in public.rooms().items() if family.name in public.families_of(name)]


def run(options: argparse.Namespace) -> int:
    found = rows()
    if options.json:
        output.print_json(found)
        return status.GOOD
    cells = [(f"{room}.{name}", ", ".join(public.families_of(name))) for name, room in public.rooms().items()]
    output.say(*output.table([("name", "kernel families"), *cells]), "")
    columns = ("loader", "extension", "backend", "priority", "from")
    families: dict[tuple[str, ...], list[str]] = {}
    for row in found:
        families.setdefault(tuple(str(row[column]) for column in columns), []).append(row["family"] or "")
    lines = [(*shown, ", ".join(names)) for shown, names in families.items()]
    output.say(*output.table([(*columns, "families"), *lines]))
    return status.GOOD
