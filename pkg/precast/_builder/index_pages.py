"""The pages of a package index as text: PEP 503 HTML and PEP 691 JSON, made from the same entries."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

API_VERSION = "1.1"  # PEP 700: sizes and the list of versions
Entry = dict[str, Any]

_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="{API_VERSION}">
<title>{{title}}</title>
</head>
<body>
{{links}}
</body>
</html>
"""


def entry(
    filename: str,
    sha256: str,
    size: int,
    requires_python: str | None,
    metadata: bytes | None,
    yanked: str | None = None,
) -> Entry:
    """One file as PEP 691 has it; ``metadata`` is what the index serves next to it, and ``yanked`` is a reason."""
    known: Entry = {"filename": filename, "url": quote(filename), "hashes": {"sha256": sha256}, "size": size}
    if requires_python is not None:
        known["requires-python"] = requires_python
    if metadata is not None:
        digest = {"sha256": hashlib.sha256(metadata).hexdigest()}
        known |= {"core-metadata": digest, "dist-info-metadata": digest}  # PEP 714: new and old name
    if yanked is not None:
        known["yanked"] = yanked
    return known


def normal(name: str) -> str:
    """The name of a project in addresses (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project(name: str, entries: Sequence[Entry], versions: Iterable[str], **meta: object) -> dict[str, str]:
    """File name -> text of the two pages of a project; ``meta`` is added to that of the JSON."""
    links = [
        f'<a href="{one["url"]}#sha256={one["hashes"]["sha256"]}"{_data(one)}>{one["filename"]}</a><br>'
        for one in entries
    ]
    document = {"name": name, "versions": list(dict.fromkeys(versions)), "files": entries}
    return _pages(f"Links for {name}", links, document, meta)


def root(projects: Iterable[str]) -> dict[str, str]:
    """File name -> text of the two pages that list the projects."""
    names = list(projects)
    links = [f'<a href="{name}/">{name}</a><br>' for name in names]
    return _pages("Simple index", links, {"projects": [{"name": name} for name in names]}, {})


def as_json(document: Mapping[str, object]) -> str:
    """A document of the index."""
    return json.dumps(document, indent=1) + "\n"


def _data(one: Entry) -> str:
    """The attributes of a link, each preceded by a space."""
    hashed = ("core-metadata", "dist-info-metadata")
    known = {key: f"sha256={one[key]['sha256']}" for key in hashed if key in one}
    known |= {key: html.escape(one[key]) for key in ("requires-python", "yanked") if key in one}
    return "".join(f' data-{key}="{value}"' for key, value in known.items())


def _pages(title: str, links: Sequence[str], document: Entry, meta: Mapping[str, object]) -> dict[str, str]:
    return {
        "index.html": _PAGE.format(title=title, links="\n".join(links)),
        "index.json": as_json({"meta": {"api-version": API_VERSION, **meta}, **document}),
    }
