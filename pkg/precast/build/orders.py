"""Reads a list of packages to ship; each entry names an archive of the package index, torches, labels and tests.

::

    torch = ["2.9", "2.13", "2.14"]        # of each package that names none

    [[package]]
    name = "torch-scatter"
    version = "2.1.2"
    sha256 = "69b3aa43..."                 # of the archive on the package index; ship --pin writes it
    cuda = ["cu130"]                       # default: a build without CUDA
    gpus = "8.0 9.0+PTX"                   # default: those of precast's own wheels
    variables = { FORCE_BUILD = "1" }      # of the environment of a build
    tests = ["test_scatter.py", "sdist:tests"]  # files or folders next to the list, and in the archive
    requires = ["numpy"]                   # what the tests need apart from torch and pytest; also a package above
    before = "no wheel for torch 2.13"     # what there is without this list
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._builder import tables
from precast._builder.tables import MatrixError, Table
from precast.build import environments
from precast.build.environments import Job
from precast.core.version import Label

IN_ARCHIVE = "sdist:"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.!]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Order:
    """One package of the list. ``tests`` next to the list are absolute paths; ``sha256`` is empty if not pinned."""

    name: str
    version: str
    sha256: str
    jobs: tuple[Job, ...]
    gpus: str | None
    variables: Mapping[str, str]
    tests: tuple[str, ...]
    requires: tuple[str, ...]
    before: str

    @property
    def label(self) -> str:
        """The folder of its wheel on the index: its label, ``cpu``, or that of no label if it has several."""
        labels = {str(job.label) for job in self.jobs}
        return labels.pop() if len(labels) == 1 else ""


def read(path: Path) -> tuple[Order, ...]:
    """Read the packages of a list. MatrixError names the entry that is missing, unknown or not understood."""
    document = Table(tables.read_toml(path), path.name)
    torches = document.all_parsed("torch", environments.parse_torch) if "torch" in document.values else ()
    found = [_order(table, torches, path.parent.resolve()) for table in document.tables("package", "name")]
    document.finish()
    twice = [one for one in found if sum((one.name, one.label) == (other.name, other.label) for other in found) > 1]
    if twice:
        raise MatrixError(f"{path.name}: {twice[0].name} is listed twice for {twice[0].label or 'several labels'}")
    for at, one in enumerate(found):
        late = [other.name for other in found[at + 1 :] if other.label == one.label and other.name in one.requires]
        if late:
            raise MatrixError(f"{path.name}: {one.name} requires {late[0]}, which comes after it")
    return tuple(found)


def pin(path: Path, order: Order, sha256: str) -> None:
    """Write the hash of a package into a list, behind its version. Nothing else of the list changes."""
    head, *blocks = re.split(r"(?m)^(?=\[\[package\]\])", path.read_text(encoding="utf-8"))
    for at, block in enumerate(blocks):
        said = [re.search(rf"""(?m)^\s*{key}\s*=\s*["']{re.escape(value)}["'].*\n""", block)
                for key, value in (("name", order.name), ("version", order.version))]  # fmt: skip
        if all(said) and said[1] is not None and not re.search(r"(?m)^\s*sha256\s*=", block):
            blocks[at] = f'{block[: said[1].end()]}sha256 = "{sha256}"\n{block[said[1].end() :]}'
    path.write_text(head + "".join(blocks), encoding="utf-8")


def _order(table: Table, torches: tuple[Any, ...], beside: Path) -> Order:
    own = table.all_parsed("torch", environments.parse_torch) if "torch" in table.values else torches
    labels = table.all_parsed("cuda", environments.parse_label) if "cuda" in table.values else (Label("cpu"),)
    if not own or not labels:
        raise MatrixError(f'{table.where}: needed a torch and a label, such as torch = ["2.14"] and cuda = ["cu130"]')
    variables = table.table("variables") if "variables" in table.values else Table({}, "")
    order = Order(
        name=table.parsed("name", lambda text: _like(_NAME, text, "the name of a package")),
        version=table.parsed("version", lambda text: _like(_VERSION, text, "a version")),
        sha256=table.parsed("sha256", lambda text: _like(_SHA256, text, "64 hexadecimal digits"))
        if "sha256" in table.values
        else "",
        jobs=tuple(itertools.starmap(Job, itertools.product(own, labels))),
        gpus=table.maybe("gpus", str),
        variables={key: variables.take(key, str) for key in sorted(variables.values)},
        tests=tuple(_placed(text, beside, table) for text in _texts(table, "tests")),
        requires=_texts(table, "requires"),
        before=table.maybe("before", str) or "",
    )
    table.finish()
    return order


def _texts(table: Table, key: str) -> tuple[str, ...]:
    return table.texts(key) if key in table.values else ()


def _like(pattern: re.Pattern[str], text: str, wanted: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"needed {wanted}, found {text!r}")
    return text


def _placed(text: str, beside: Path, table: Table) -> str:
    """The absolute path of a test next to the list, which must exist; a test in the archive is returned unchanged."""
    if text.startswith(IN_ARCHIVE):
        return text
    path = beside / text
    if not path.exists():
        raise MatrixError(f"{table.where}.tests: there is no file {path}")
    return str(path)
