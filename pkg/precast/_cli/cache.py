"""``precast cache``: show, list, verify, prune and clear the build cache."""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import cache_tools
from precast._builder.cache import default_root
from precast._cli import output, status
from precast._load import probe

if TYPE_CHECKING:
    from precast._cli.names import Verbs

_UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("cache", help="the build cache: dir, list, verify, prune, clear")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    folder = actions.add_parser("dir", help="print the folder of the build cache; the first build creates it")
    folder.set_defaults(run=print_dir)
    listing = actions.add_parser("list", help="list every entry and its target; --all adds object files")
    listing.add_argument("--all", action="store_true", help="also list object files")
    listing.add_argument("--json", action="store_true", help="print one JSON array of all entries, with their inputs")
    listing.set_defaults(run=print_list)
    verify = actions.add_parser("verify", help="compare every entry with its checksum; status 1 if one is corrupted")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    verify.set_defaults(run=verify_all)
    prune = actions.add_parser(
        "prune", help="remove corrupted entries, files of failed builds, and entries beyond the limits"
    )
    prune.add_argument(
        "--older-than", type=_days, metavar="DAYS", help="also remove entries that are older than DAYS days"
    )
    prune.add_argument(
        "--max-size",
        type=_bytes,
        metavar="SIZE",
        help="also remove the oldest entries, until SIZE remains, such as 500M",
    )
    clear = actions.add_parser("clear", help="remove every entry except running builds")
    for action in (prune, clear):
        action.add_argument("--dry-run", action="store_true", help="print the entries, but remove nothing")
    prune.set_defaults(run=prune_some)
    clear.set_defaults(run=clear_all)


def print_dir(options: argparse.Namespace) -> int:
    output.say(_root())
    return status.GOOD


def print_list(options: argparse.Namespace) -> int:
    entries = cache_tools.read_entries(_root())
    if options.json:
        output.print_json([_to_json(entry) for entry in entries])
        return status.GOOD
    shown = [entry for entry in entries if options.all or entry.name != cache_tools.OBJECTS]
    header = ("entry", "what", "size", "built in", "made (UTC)", "state")
    cells = [
        (
            entry.label,
            entry.what,
            output.size(entry.bytes),
            f"{entry.seconds:.1f} s",
            output.when(entry.made),
            _state(entry),
        )
        for entry in shown
    ]
    output.say(*output.table([header, *cells]))
    total = sum(entry.bytes for entry in entries)
    output.say(f"{len(entries)} entries, {len(entries) - len(shown)} not shown, {output.size(total)} in {_root()}")
    return status.GOOD


def verify_all(options: argparse.Namespace) -> int:
    entries = cache_tools.read_entries(_root())
    damaged = [entry for entry in entries if entry.problem is not None]
    if options.json:
        output.print_json({"entries": len(entries), "damaged": [_to_json(entry) for entry in damaged]})
    else:
        for entry in damaged:
            output.say(f"{entry.folder}: {entry.problem}")
        output.say(f"{len(entries)} entries, {len(damaged)} damaged")
        if damaged:
            output.say(
                "a damaged entry is never loaded; its next use builds it again, and precast cache prune removes it"
            )
    return status.NO if damaged else status.GOOD


def prune_some(options: argparse.Namespace) -> int:
    """Remove the entries outside the given limits."""
    now = time.time()
    oldest = None if options.older_than is None else now - options.older_than * 86400
    return _remove(cache_tools.Limits(oldest, options.max_size), now, dry_run=options.dry_run)


def clear_all(options: argparse.Namespace) -> int:
    return _remove(cache_tools.Limits(everything=True), time.time(), dry_run=options.dry_run)


def _remove(limits: cache_tools.Limits, now: float, *, dry_run: bool) -> int:
    root = _root()
    removals = cache_tools.plan_prune(root, limits, now)
    for removal in removals:
        output.say(f"{removal.path.relative_to(root)}: {removal.why}")
    freed = sum(removal.bytes for removal in removals) if dry_run else cache_tools.remove(root, removals)
    output.say(f"{len(removals)} {'would go' if dry_run else 'removed'}, {output.size(freed)} in {root}")
    return status.GOOD


def _root() -> Path:
    return default_root(probe.read_settings())


def _state(entry: cache_tools.Entry) -> str:
    return "whole" if entry.problem is None else f"damaged: {entry.problem}"


def _to_json(entry: cache_tools.Entry) -> dict[str, Any]:
    return {
        "entry": entry.label,
        "path": str(entry.payload) if entry.payload else None,
        "bytes": entry.bytes,
        "seconds": entry.seconds,
        "made": entry.made,
        "problem": entry.problem,
        "inputs": dict(entry.inputs),
    }


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:  # refuses NaN as well
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days; needed one such as 30")
    return days


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([BKMGT]?)B?", text.upper())
    if match is None or len(text) > 30:  # a number that is still finite
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; needed one such as 500M or 2G")
    return int(float(match[1]) * _UNITS[match[2]])
