"""The pages of an index as text: PEP 503 HTML, PEP 691 JSON and the landing page. The same files give the same text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from tools.shared.dists import PROJECT, Dist
from tools.shared.published import LABELS, in_order

API_VERSION = "1.1"  # PEP 700: sizes and the list of versions

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).resolve().parents[1] / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.policies["json.dumps_kwargs"] = {"sort_keys": False}  # the selector's order is the order of its buttons


def pages(dists: Sequence[Dist], yanked: Mapping[str, str], selector: Mapping[str, Any]) -> dict[str, str]:
    """Path -> text. Each label is a separate index in its own folder; the root has the files without a label.

    A version with a label sorts above the one without: on one page, ``==1.0`` would always select the greatest label.
    """
    found = {"index.html": _render("landing.html", selector=selector), "selector.json": _json(selector)}
    labels = sorted({dist.label for dist in dists} - {""})
    for label in ["", *labels]:
        folder = f"{label}/" if label else ""
        entries = [_entry(dist, yanked.get(dist.filename)) for dist in in_order(dists) if dist.label == label]
        if label:
            found[f"{folder}index.html"] = _render("projects.html", projects=[PROJECT])
        found[f"{folder}index.json"] = _json({"meta": {"api-version": API_VERSION}, "projects": [{"name": PROJECT}]})
        found[f"{folder}{PROJECT}/index.html"] = _render("files.html", project=PROJECT, entries=entries)
        found[f"{folder}{PROJECT}/index.json"] = _json(
            {
                "meta": {"api-version": API_VERSION, **({} if label else {LABELS: labels})},
                "name": PROJECT,
                "versions": list(dict.fromkeys(str(d.version) for d in in_order(dists) if d.label == label)),
                "files": entries,
            }
        )
    return found


def selector_part(selector: Mapping[str, Any]) -> str:
    """The selector alone, to be put into another page."""
    return _render("selector.html", selector=selector)


def folder_of(dist: Dist) -> str:
    """The folder of a file, relative to the root of the site."""
    return f"{dist.label}/{PROJECT}" if dist.label else PROJECT


def _entry(dist: Dist, reason: str | None) -> dict[str, Any]:
    """One file as an entry of PEP 691; the HTML is made from the same entry."""
    entry: dict[str, Any] = {
        "filename": dist.filename,
        "url": quote(dist.filename),
        "hashes": {"sha256": dist.sha256},
        "size": dist.size,
    }
    if dist.requires_python is not None:
        entry["requires-python"] = dist.requires_python
    if dist.core_metadata is not None:
        digest = {"sha256": hashlib.sha256(dist.core_metadata).hexdigest()}
        entry |= {"core-metadata": digest, "dist-info-metadata": digest}  # PEP 714: new and old name
    if reason is not None:
        entry["yanked"] = reason
    return entry


def _render(template: str, **values: object) -> str:
    return _TEMPLATES.get_template(template).render(**values)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"
