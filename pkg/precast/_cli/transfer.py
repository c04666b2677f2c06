"""``precast export-cache`` and ``import-cache``: copy builds to machines without a compiler or a network."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from precast._builder import cache_archive, cache_tools
from precast._builder.cache import Cache, default_root
from precast._cli import names, output, status
from precast._load import probe
from precast.errors import KernelUnavailable

if TYPE_CHECKING:
    from precast._cli.names import Verbs


def add(verbs: Verbs) -> None:
    out = verbs.add_parser("export-cache", help="write the builds of this cache into a tar archive")
    out.add_argument(
        "archive", type=Path, metavar="TAR", help="a file name that ends in .tar, .tar.gz, .tgz or .tar.xz"
    )
    out.add_argument(
        "kernels",
        nargs="*",
        type=names.kernel("export-cache"),
        metavar="KERNEL",
        help="only these kernels; default: all",
    )
    out.set_defaults(run=run_export)
    into = verbs.add_parser("import-cache", help="check the files of an archive, and add its builds to this cache")
    into.add_argument(
        "archive", type=Path, metavar="TAR", help="an archive that export-cache wrote, from somebody you trust"
    )
    into.set_defaults(run=run_import)


def run_export(options: argparse.Namespace) -> int:
    root = default_root(probe.read_settings())
    wanted = [family.name for family in names.families(options.kernels)] if options.kernels else []
    entries = [e for e in cache_tools.read_entries(root, names=wanted) if e.name != cache_tools.OBJECTS]
    whole = [entry for entry in entries if entry.problem is None]
    if not whole:
        raise KernelUnavailable(
            "there is nothing to export",
            found=f"no undamaged build{' of ' + ', '.join(wanted) if wanted else ''} in {root}",
            needed="a build, which the first use of a kernel or precast warm makes",
            fix=" ".join(["precast warm", *wanted]),
        )
    items = cache_archive.export_cache(whole, options.archive)
    total = output.size(sum(item.bytes for item in items))
    output.say(f"{len(items)} entries, {total}, {len(entries) - len(whole)} damaged ones left out: {options.archive}")
    return status.GOOD


def run_import(options: argparse.Namespace) -> int:
    """Add the builds of the archive to the cache."""
    root = default_root(probe.read_settings())
    added, known = cache_archive.import_cache(options.archive, Cache(root))
    for item in added:
        output.say(f"{item.key}: {item.payload}, {output.size(item.bytes)}")
    output.say(f"{len(added)} entries added, {len(known)} there already, in {root}")
    return status.GOOD
