"""``precast list``: the kernels this package has, by extension; looks at no machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from precast._cli import output, status
from precast._load import namespace

if TYPE_CHECKING:
    from precast._cli.names import Verbs


def add(verbs: Verbs) -> None:
    """The arguments."""
    parser = verbs.add_parser("list", help="the kernels this package has, and the names they go by")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.set_defaults(run=run)


def rows() -> list[dict[str, Any]]:
    """One object per extension and family."""
    from precast import kernel_loader
    from precast.extension.builtin import BUILTIN

    public = (getattr(kernel_loader, name) for name in kernel_loader.__all__)
    loaders: dict[object, str] = {
        extension: loader.__name__
        for loader in public
        if isinstance(loader, type) and issubclass(loader, kernel_loader.KernelLoader)
        for extension in loader.REGISTRY
    }

    return [
        {
            "loader": loaders[extension],
            "extension": extension.extension_name,
            "device": extension.device,
            "machine": extension.machine,
            "priority": extension().priority,
            "family": family.name,
            "ops": [namespace.op_name(schema) for schema in family.ops],
        }
        for extension in BUILTIN
        for family in extension.families
    ]


def run(options: argparse.Namespace) -> int:
    """Prints the list."""
    found = rows()
    if options.json:
        output.print_json(found)
        return status.GOOD
    columns = ("loader", "extension", "device", "family", "ops")
    cells = [[", ".join(row[c]) if c == "ops" else str(row[c]) for c in columns] for row in found]
    print(*output.table([columns, *cells]), sep="\n")
    return status.GOOD
