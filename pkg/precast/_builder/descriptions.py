"""Read the descriptions of the kernel families, ``csrc/<folder>/family.toml``, as strictly as ``matrix.toml``.

Only checkouts and builds read them; a build gathers them into the one file that an installed package reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from precast._builder.tables import MatrixError, Table, read_toml

NAME = "family.toml"
DEVICES = ("cpu", "cuda", "xpu")
ROOMS = ("ops", "optim", "nn")  # of public names
# Whose functions ours may replace; a note stands for a function without a kernel of its own, and says where it runs.
ELSEWHERE = ("note", "torch", "apex", "vllm", "liger")


def read(csrc: Path) -> list[dict[str, Any]]:
    """The description of every folder as plain values, sorted by name. MatrixError names the place of a mistake."""
    found = [_folder(path) for path in sorted(csrc.glob(f"*/{NAME}"))]
    families = [family["name"] for folder in found for family in folder["families"]]
    groups = [group for folder in found for group in folder["public"]]
    names = [name for group in groups for room in ROOMS for name in group.get(room, ())]
    for what, given in (("family", families), ("public name", names)):
        for name in given:
            if given.count(name) > 1:
                raise MatrixError(f"{csrc}: two descriptions have a {what} {name!r}")
    for name in {family for group in groups for family in group["families"]} - {*families}:
        raise MatrixError(f"{csrc}: public names load the family {name!r}, which no description has")
    return found


def gathered(csrc: Path) -> str:
    """All descriptions as the JSON file of a wheel. tomllib is too slow for a first call, and Python 3.10 lacks it."""
    return json.dumps(read(csrc), indent=1) + "\n"


def _folder(path: Path) -> dict[str, Any]:
    table = Table(read_toml(path), f"csrc/{path.parent.name}/{NAME}")
    _autocast(table)
    _replaces(table)
    public, late = _public(table), table.maybe("late", bool) or False
    if late and any(path.parent.name in group.get("ops", ()) for group in public):  # its module would hide the function
        raise MatrixError(f"{table.where}.public: a folder with late = true cannot have a function of its own name")
    families = table.table("family")
    described = [_family(name, families.table(name), path.parent.parent, late) for name in list(families.values)]
    table.finish()
    return {"name": path.parent.name, "public": public, "late": late, "families": described}


def _public(table: Table) -> list[dict[str, tuple[str, ...]]]:
    """The groups of public names, each with the families that its names may load."""
    found = []
    for group in table.tables("public", "families") if "public" in table.values else ():
        found.append({key: group.texts(key) for key in ("families", *ROOMS) if key in group.values})
        group.finish()
        if len(found[-1]) < 2 or not found[-1].get("families"):
            raise MatrixError(f"{group.where}: needed the key families, and public names in {' or '.join(ROOMS)}")
    return found


def _functions(table: Table) -> list[str]:
    return [name for group in table.values.get("public", ()) for name in group.get("ops", ())]


def autocast(csrc: Path) -> list[tuple[tuple[str, ...], str, str]]:
    """For the docs: the functions of each folder, and how they and torch's own behave under autocast."""
    tables = [Table(read_toml(path), f"csrc/{path.parent.name}/{NAME}") for path in sorted(csrc.glob(f"*/{NAME}"))]
    return [row for row in map(_autocast, tables) if row[0]]


def _autocast(table: Table) -> tuple[tuple[str, ...], str, str]:
    """The autocast table, required for a folder with public functions; ``without`` lists those that take no tensor."""
    if not _functions(table):
        return (), "", ""
    inner = table.table("autocast")
    ours, torch = inner.take("ours", str), inner.take("torch", str)
    without = inner.texts("without") if "without" in inner.values else ()
    inner.finish()
    return tuple(sorted({*_functions(table)} - {*without})), ours, torch


def replaces(csrc: Path) -> dict[str, dict[str, str]]:
    """For the docs: function -> library -> what the function replaces there, for those of which it is known."""
    tables = [Table(read_toml(path), f"csrc/{path.parent.name}/{NAME}") for path in sorted(csrc.glob(f"*/{NAME}"))]
    return {name: words for table in tables for name, words in _replaces(table).items()}


def _replaces(table: Table) -> dict[str, dict[str, str]]:
    """The optional tables of replacements, one for each public function."""
    inner, functions = Table(table.maybe("replaces", dict) or {}, f"{table.where}.replaces"), _functions(table)
    found = {}
    for name in list(inner.values):
        if name not in functions:
            raise MatrixError(f"{inner.where}: {name} is no public function; there are {', '.join(functions)}")
        words = inner.table(name)
        found[name] = {key: text for key in ELSEWHERE if (text := words.maybe(key, str)) is not None}
        words.finish()
    return found


def _family(name: str, table: Table, csrc: Path, late: bool) -> dict[str, Any]:
    device, host, ops = table.maybe("device", str), table.texts("host"), table.texts("ops")
    cpu, plain = (table.texts(key) if key in table.values else () for key in ("cpu", "plain"))
    devices = table.texts("devices")
    table.finish()
    for source in filter(None, (device, *host, *cpu)):
        if not (csrc / source).is_file():
            raise MatrixError(f"{table.where}: there is no {source} in csrc")
    for kind in (*devices, *plain):
        if kind not in DEVICES:
            raise MatrixError(f"{table.where}: there is no device {kind!r}; there are {', '.join(DEVICES)}")
    found = {"name": name, "device": device, "host": host, "cpu": cpu, "ops": ops}
    return found | {"devices": devices, "late": late, "plain": plain}
