"""The published files of an index, which never change: files can only be added and yanked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.version import Version

from precast._builder.tables import MatrixError, Table, read_toml
from tools.shared.dists import PROJECT, Dist, IndexRefused, read_dist, refuse_twice

SUFFIXES = (".whl", ".tar.gz")
LABELS = "_labels"  # a key of the root page; PEP 691 allows own keys with an underscore in its meta


@dataclass(frozen=True, slots=True)
class Published:
    """The files of an existing index, and the reasons for those that it marks as yanked."""

    dists: tuple[Dist, ...]
    yanked: Mapping[str, str]


def read_site(site: Path) -> Published:
    """Read an index that this program wrote; IndexRefused for a file that is missing, changed or not listed."""
    pages = sorted([*site.glob(f"{PROJECT}/index.json"), *site.glob(f"*/{PROJECT}/index.json")])
    if not pages:
        raise IndexRefused(f"{site}: not an index: it has no {PROJECT}/index.json")
    _all_folders(site, pages)
    dists: list[Dist] = []
    yanked: dict[str, str] = {}
    for page in pages:
        for entry in _entries(page):
            dist = _published(page, entry)
            dists.append(dist)
            if entry.get("yanked"):
                yanked[dist.filename] = str(entry["yanked"])
    listed = {dist.source for dist in dists}
    for path in sorted(site.rglob("*")):
        if path.name.endswith(SUFFIXES) and path not in listed:
            raise IndexRefused(f"{path}: it lies in the index, and no page lists it: an entry was removed")
    for page in pages:
        _html_agrees(page.with_suffix(".html"), _entries(page))
    return Published(tuple(dists), yanked)


def _all_folders(site: Path, pages: Sequence[Path]) -> None:
    """Check the folders against the labels that the root lists, so that a missing folder is noticed."""
    root = site / PROJECT / "index.json"
    for label in _page(root).get("meta", {}).get(LABELS, []) if root in pages else []:
        page = site / str(label) / PROJECT / "index.json"
        if page not in pages:
            raise IndexRefused(f"{page}: removed after publication; {root} names the label {label}")


def _page(page: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(page.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise IndexRefused(f"{page}: not a page of an index: {error!r}") from error


def _entries(page: Path) -> list[dict[str, Any]]:
    try:
        return [dict(entry) for entry in _page(page)["files"] if entry["url"] and entry["hashes"]["sha256"]]
    except (KeyError, TypeError) as error:
        raise IndexRefused(f"{page}: not a page of an index: {error!r}") from error


def _html_agrees(page: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Check that the HTML page lists the same files as the JSON; a copy for the next index may lack the page."""
    if not page.is_file():
        return
    linked = set(re.findall(r'<a href="([^"#]*)#sha256=([^"]*)"', page.read_text(encoding="utf-8")))
    listed = {(str(entry["url"]), str(entry["hashes"]["sha256"])) for entry in entries}
    for url, _ in sorted(linked ^ listed):
        raise IndexRefused(f"{page}: the entry of {unquote(url)} was changed after publication: index.json has another")


def _published(page: Path, entry: Mapping[str, Any]) -> Dist:
    path = page.parent / unquote(str(entry["url"]))
    if not path.is_file():
        raise IndexRefused(f"{path}: removed after publication; {page} lists it")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != entry["hashes"]["sha256"]:
        raise IndexRefused(
            f"{path}: changed after publication: {page} says sha256 {entry['hashes']['sha256']}, its bytes are {found}"
        )
    return read_dist(path)


def joined(before: Sequence[Published], new: Sequence[Dist]) -> tuple[Dist, ...]:
    """The published and the new files; IndexRefused if a published name has different bytes."""
    by_name: dict[str, Dist] = {}
    for dist in (*(dist for site in before for dist in site.dists), *new):
        known = by_name.setdefault(dist.filename, dist)
        if known.sha256 != dist.sha256:
            raise IndexRefused(
                f"{dist.source}: changed after publication: {known.source} has sha256 {known.sha256}, this one "
                f"{dist.sha256}. A published file stays as it is: raise the version (a .postN will do). If it was "
                "never published: --fresh"
            )
    dists = tuple(by_name.values())
    refuse_twice(dists)
    return dists


def read_yanks(path: Path, dists: Sequence[Dist], before: Sequence[Published]) -> dict[str, str]:
    """File name -> reason, from a TOML file: by version, by version and label, or by file name.

    IndexRefused for an entry that matches nothing, and for a removed entry, because installers may have skipped the
    file.
    """
    document = read_toml(path)
    try:
        table = Table(document, path.name).table("yanked")
        reasons = {key: table.take(key, str) for key in tuple(table.values)}
    except MatrixError as error:
        raise IndexRefused(f"{path}: {error}") from error
    found: dict[str, str] = {}
    for key, reason in reasons.items():
        names = [d.filename for d in dists if key in (d.filename, str(d.version), d.version.public)]
        if not names or not reason.strip():
            raise IndexRefused(f"{path}: {key}: {'the reason is empty' if names else 'no such version or file'}")
        found |= dict.fromkeys(names, reason)
    for name in sorted({name for site in before for name in site.yanked} - set(found)):
        raise IndexRefused(f"{name}: it was yanked, and {path} no longer says so: publish another version instead")
    return found


def in_order(dists: Sequence[Dist]) -> list[Dist]:
    """Sort by version, oldest first, then by file name: the order of every page."""
    return sorted(dists, key=lambda dist: (Version(dist.version.public), dist.filename))
