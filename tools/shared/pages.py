"""The pages of an index as text: PEP 503 HTML, PEP 691 JSON and the landing page. The same files give the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from precast._builder import index_pages
from tools.shared.dists import PROJECT, Dist
from tools.shared.published import LABELS, in_order

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).resolve().parents[1] / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.policies["json.dumps_kwargs"] = {"sort_keys": False}  # the order of the keys is the order of the buttons


def pages(dists: Sequence[Dist], yanked: Mapping[str, str], selector: Mapping[str, Any]) -> dict[str, str]:
    """Path -> text. Each label is a separate index in its own folder; the root has the files without a label.

    A version with a label sorts above the one without: on one page, ``==1.0`` would always select the greatest label.
    """
    found: dict[str, str] = {}
    labels = sorted({dist.label for dist in dists} - {""})
    for label in ["", *labels]:
        folder = f"{label}/" if label else ""
        of_label = [dist for dist in in_order(dists) if dist.label == label]
        entries = [
            index_pages.entry(d.filename, d.sha256, d.size, d.requires_python, d.core_metadata, yanked.get(d.filename))
            for d in of_label
        ]
        meta = {} if label else {LABELS: labels}
        project = index_pages.project(PROJECT, entries, (str(dist.version) for dist in of_label), **meta)
        found |= {f"{folder}{name}": text for name, text in index_pages.root([PROJECT]).items()}
        found |= {f"{folder}{PROJECT}/{name}": text for name, text in project.items()}
    landing = {"index.html": _render("landing.html", selector=selector), "selector.json": index_pages.as_json(selector)}
    return found | landing


def selector_part(selector: Mapping[str, Any]) -> str:
    """The selector alone, to be put into another page."""
    return _render("selector.html", selector=selector)


def folder_of(dist: Dist) -> str:
    """The folder of a file, relative to the root of the site."""
    return f"{dist.label}/{PROJECT}" if dist.label else PROJECT


def _render(template: str, **values: object) -> str:
    return _TEMPLATES.get_template(template).render(**values)
