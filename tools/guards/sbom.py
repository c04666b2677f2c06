"""The guard of the bill of materials: it is valid CycloneDX, and each row is true for this wheel.

The guard reads the document as plain JSON and derives the rows again from the manifest and the pins.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from precast._builder import headers
from precast.core.reasons import Rejection
from precast.core.torch_abi import Exact
from tools.guards.subject import Audited, same

if TYPE_CHECKING:
    from cyclonedx.validation.json import JsonStrictValidator

FOLDER = "sboms"
FILE = "precast.cdx.json"
_STABLE = "precast/csrc/torch_stable"

# A row for a component: version, sha256, licence, scope. An empty string means that the row lacks the field.
Row = tuple[str, str, str, str]


@functools.cache
def _validator() -> JsonStrictValidator:
    """Imported when it is asked: its grammar of addresses takes a second."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


def check_sbom(a: Audited) -> Iterator[Rejection]:
    """There is one valid document. It lists exactly the wheel's contents and the tools that compiled it."""
    folder = f"{a.wheel.dist_info}/{FOLDER}/"
    for name in sorted(a.wheel.below(folder)):
        if name != FILE:
            # auditwheel describes grafted libraries here, and nothing may be grafted
            yield Rejection("sbom", f"{FILE} alone", "another document", f"{folder}{name}")
    data = a.wheel.files.get(f"{folder}{FILE}")
    if data is None:
        yield Rejection("sbom", "a bill of materials", "no such file", f"{folder}{FILE}")
        return
    try:
        text = data.decode("utf-8")
        document = json.loads(text)
    except ValueError as error:
        yield Rejection("sbom", "JSON", str(error), f"{folder}{FILE}")
        return
    invalid = _validator().validate_str(text)
    if invalid is not None:
        where = f"{FILE} {getattr(invalid.data, 'json_path', '')}".rstrip()
        yield Rejection("schema", "CycloneDX 1.6", str(getattr(invalid.data, "message", invalid))[:200], where)
        return
    yield from _moment(a, document)
    rows = list(_rows(document))
    wanted, found = _wanted(a), dict(rows)
    if len(found) != len(rows):
        twice = sorted({ref for ref, _ in rows if [name for name, _ in rows].count(ref) > 1})
        yield Rejection("component", "listed once", "listed more than once", ", ".join(twice[:3]))
    for ref in sorted({*wanted, *found}):
        if ref not in found:
            yield Rejection("component", "listed, as it is of this wheel", "not listed", ref)
        elif ref not in wanted:
            yield Rejection("component", "not listed: the wheel knows nothing of it", "listed", ref)
        else:
            for what, mine, theirs in zip(
                ("version", "sha256", "licence", "scope"), wanted[ref], found[ref], strict=True
            ):
                yield from same(what, ref, mine, theirs)


def _moment(a: Audited, document: dict[str, Any]) -> Iterator[Rejection]:
    """The document's timestamp is that of the archive, and not the time of the build."""
    archive = datetime(*a.wheel.entries[0].moment, tzinfo=timezone.utc).isoformat()
    yield from same("timestamp", f"{FILE} $.metadata.timestamp", archive, document.get("metadata", {}).get("timestamp"))


def _rows(document: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    """Every component, including nested ones, with its package URL or path."""
    todo = [document.get("metadata", {}).get("component", {"name": "no component"}), *document.get("components", ())]
    for component in todo:
        todo += component.get("components", ())
        purl = component.get("purl")
        ref = component["name"] if purl is None else str(purl)
        hashes = [entry["content"] for entry in component.get("hashes", ()) if entry["alg"] == "SHA-256"]
        licences = [
            entry.get("expression") or entry["license"].get("id") or entry["license"].get("name")
            for entry in component.get("licenses", ())
        ]
        version = str(component.get("version", ""))
        yield ref, (version, ", ".join(hashes), ", ".join(licences), str(component.get("scope", "")))


def _wanted(a: Audited) -> dict[str, Row]:
    """The rows derived from the manifest, the matrix and, if the wheel has them, the pinned headers."""
    info, pins = a.info, headers.load_pins()
    version = a.wheel.version
    rows: dict[str, Row] = {_purl("precast", version): (version, "", "Apache-2.0", "")}
    rows |= {f"precast/_C/{path}": ("", sha256, "", "") for path, sha256 in info.files.items()}
    if a.wheel.below(f"{_STABLE}/"):
        rows[_purl("torch", pins.torch)] = (pins.torch, "", "BSD-3-Clause", "")
        rows |= {f"{_STABLE}/include/{name}": ("", sha, "", "") for name, sha in pins.headers.items()}
        rows |= {f"{_STABLE}/{name}": ("", sha, "", "") for name, sha in pins.notices.items()}
    for name, compiler in info.compilers:
        if name == "g++":
            rows[name] = (compiler, "", "GPL-3.0-or-later WITH GCC-exception-3.1", "excluded")
        elif name == "clang++":
            rows[name] = (compiler, "", "Apache-2.0 WITH LLVM-exception", "excluded")
    for nvrtc in {file.nvrtc for file in info.device}:
        package = next((spec.package for spec in a.matrix.labels if spec.nvrtc == nvrtc), None)
        ref = "nvrtc" if package is None else _purl(package, nvrtc)
        rows[ref] = (nvrtc, "", "NVIDIA CUDA Toolkit End User License Agreement", "excluded")
    classic = {file.abi.release for file in info.host if isinstance(file.abi, Exact)}
    for release in a.matrix.releases:
        if release.release in classic:
            rows[_purl("torch", release.version)] = (release.version, "", "BSD-3-Clause", "excluded")
    return rows


def _purl(name: str, version: str) -> str:
    """The package URL of a PyPI project; the plus sign of a version is escaped."""
    return f"pkg:pypi/{name}@{re.sub('[+]', '%2B', version)}"
