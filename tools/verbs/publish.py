"""Take a checked release out of the run that made it, one step at a time; nothing here builds or installs anything.

``stage`` picks what PyPI takes; ``previous`` copies the public index, for the next one to be held against; ``draft``
puts the files into a draft release, ``open`` makes the draft public; ``fetch`` takes files back from the public index
and compares. It needs Python alone, as jobs that may write install nothing. Exit status: 0; 1 when something is not as
it must be, and then nothing was changed.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from precast._builder import metadata
from precast._version import __version__
from precast.errors import KernelError
from tools.shared import wheelhouse

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "precast"
DOCS = "docs/versions.json"  # as versions.py writes it, which needs more than Python too
LABELS = "_labels"  # the root page's key for the folders, as in published.py, which needs more than Python
SUMS = "SHA256SUMS"
NONE = "none"  # given instead of an address before the first publication
TIMEOUT_S = 60


class NotPublished(KernelError):
    """A step cannot be done; the message names the file, the release or the address."""


def stage(folder: Path, out: Path) -> list[Path]:
    """Copy the files for PyPI: the sdist, and the wheels whose version has no label."""
    chosen = [path for path in _files(folder) if "+" not in path.name]
    if not any(path.name.endswith(".tar.gz") for path in chosen):
        raise NotPublished(f"{folder}: no sdist, without which nothing goes to PyPI")
    out.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy2(path, out)) for path in chosen]


def draft(folder: Path, tag: str) -> str:
    """Create the draft of a release, or add the files to the draft of an earlier attempt."""
    if tag != f"v{__version__}":
        raise NotPublished(f"the tag is {tag!r}, and this is version {__version__}: it must be v{__version__}")
    metadata.require_addresses(ROOT)
    files = _files(folder)
    state = _state(tag)
    if state == "public":
        raise NotPublished(f"{tag} is public already: a published release stays as it is, raise the version")
    sums = folder / SUMS
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    names = [str(path) for path in (*files, sums)]
    if state == "draft":
        _gh("release", "upload", tag, "--clobber", *names)
    else:
        _gh("release", "create", tag, "--draft", "--verify-tag", "--generate-notes", "--title", tag, *names)
    return f"{tag}: a draft with {len(names)} files"


def publish(tag: str) -> str:
    """Make the draft public; if the release is public already, say so."""
    state = _state(tag)
    if state is None:
        raise NotPublished(f"{tag} has no draft: python -m tools publish draft WHEELHOUSE --tag {tag}")
    if state == "draft":
        _gh("release", "edit", tag, "--draft=false")
    return f"{tag}: public" if state == "draft" else f"{tag}: public already"


def previous(index: str, out: Path) -> int:
    """Copy the pages and files of the public index that the next one is compared with; return the number of files."""
    if index == NONE:
        _write(out / PROJECT / "index.json", json.dumps({"files": []}).encode())
        _write(out / DOCS, b"[]")
        return 0
    root = _page(_get(urljoin(_base(index), f"{PROJECT}/index.json")), PROJECT)
    labels = [str(label) for label in root.get("meta", {}).get(LABELS, [])]
    if not all(label.isalnum() for label in labels):
        raise NotPublished(f"{PROJECT}/index.json: its labels are no labels: {', '.join(labels)}")
    count = 0
    for place in (PROJECT, *(f"{label}/{PROJECT}" for label in labels)):
        page = _get(urljoin(_base(index), f"{place}/index.json"))
        _write(out / place / "index.json", page)
        for entry in _entries(page, place):
            data = _get(urljoin(_base(index), f"{place}/{entry['url']}"))
            _same(entry["filename"], hashlib.sha256(data).hexdigest(), entry["hashes"]["sha256"], "its page says")
            _write(out / place / entry["filename"], data)
            count += 1
    return count + _documentation(index, out)


def _documentation(index: str, out: Path) -> int:
    """Copy the list of the documented versions and the archive of each."""
    page = _get(urljoin(_base(index), DOCS))
    try:
        digests = {str(entry["version"]): entry["properties"]["sha256"] for entry in json.loads(page)}
    except (ValueError, TypeError, KeyError) as error:
        raise NotPublished(f"{DOCS}: not the list of a documentation: {error!r}") from error
    for version, digest in digests.items():
        if not re.fullmatch(r"\d[0-9a-z.]*", version):
            raise NotPublished(f"{DOCS}: {version!r} is not a version")
        data = _get(urljoin(_base(index), f"docs/{version}.zip"))
        _same(f"docs/{version}.zip", hashlib.sha256(data).hexdigest(), digest, f"{DOCS} says")
        _write(out / "docs" / f"{version}.zip", data)
    _write(out / DOCS, page)
    return len(digests)


def fetch(folder: Path, index: str, out: Path) -> list[Path]:
    """Download every wheel of a folder from the public index; the bytes must be the same."""
    found = []
    for record in wheelhouse.read(folder).values():
        if not record.file.endswith(".whl"):
            continue
        _, _, label = record.file.split("-")[1].partition("+")
        place = f"{label}/{PROJECT}/" if label else f"{PROJECT}/"
        data = _get(urljoin(_base(index), place + quote(record.file)))
        _same(record.file, hashlib.sha256(data).hexdigest(), record.sha256, "this release has")
        _write(out / record.file, data)
        found.append(out / record.file)
    if not found:
        raise NotPublished(f"{folder}: no wheel, so there is nothing to compare with")
    return found


def _files(folder: Path) -> list[Path]:
    """The finished files, each checked against its record."""
    records = list(wheelhouse.read(folder).values())
    if not records:
        raise NotPublished(f"{folder}: no finished files; `python -m tools build` makes them")
    for record in records:
        if not (folder / record.file).is_file():
            raise NotPublished(f"{folder / record.file}: not there, though its record is")
        _same(record.file, _sha256(folder / record.file), record.sha256, "its record says")
    return [folder / record.file for record in records]


def _state(tag: str) -> str | None:
    listed = json.loads(_gh("release", "list", "--limit", "1000", "--json", "tagName,isDraft"))
    for release in listed:
        if release["tagName"] == tag:
            return "draft" if release["isDraft"] else "public"
    return None


def _gh(*arguments: str) -> str:
    """Run GitHub's CLI, which authenticates with GH_TOKEN."""
    try:
        done = subprocess.run(["gh", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NotPublished(
            "gh is not on PATH: GitHub's runners have it, elsewhere see https://cli.github.com"
        ) from error
    if done.returncode:
        raise NotPublished(f"gh {' '.join(arguments[:2])} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def _base(index: str) -> str:
    if not index.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise NotPublished(
            f"the address of the index is {index!r}; needed: https://..., or {NONE!r} before the first release"
        )
    return index.rstrip("/") + "/"


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            data: bytes = answer.read()
            return data
    except (OSError, http.client.HTTPException) as error:  # such as an answer that ends early
        raise NotPublished(f"{url}: {error}") from error


def _page(page: bytes, place: str) -> dict[str, Any]:
    try:
        return dict(json.loads(page))
    except (ValueError, TypeError) as error:
        raise NotPublished(f"{place}/index.json: not a page of an index: {error!r}") from error


def _entries(page: bytes, place: str) -> list[dict[str, Any]]:
    try:
        entries = [dict(entry) for entry in _page(page, place)["files"]]
        strange = [entry["url"] for entry in entries if not _lies_beside(entry["url"], entry["filename"])]
    except (KeyError, TypeError) as error:
        raise NotPublished(f"{place}/index.json: not a page of an index: {error!r}") from error
    if strange:
        raise NotPublished(f"{place}/index.json: its files must lie beside it, found {strange[0]}")
    return entries


def _lies_beside(url: str, name: str) -> bool:
    """Whether a URL is a plain file name of a distribution, so that a page cannot choose where its copy is written."""
    return url == quote(name, safe="") and name[:1].isalnum() and name.endswith((".whl", ".tar.gz"))


def _same(name: str, found: str, wanted: str, who: str) -> None:
    if found != wanted:
        raise NotPublished(f"{name}: sha256 {found}, and {who} {wanted}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main(arguments: list[str]) -> int:
    """Do one step."""
    parser = argparse.ArgumentParser(prog="python -m tools publish", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    for name, needed in {
        "stage": ("wheelhouse", "out"),
        "previous": ("index", "out"),
        "draft": ("wheelhouse", "tag"),
        "open": ("tag",),
        "fetch": ("wheelhouse", "index", "out"),
    }.items():
        step = steps.add_parser(name)
        if "wheelhouse" in needed:
            step.add_argument("wheelhouse", type=Path, help="the folder of finished files and their records")
        if "tag" in needed:
            step.add_argument("--tag", required=True, help="the tag of the release: v and the version")
        if "index" in needed:
            step.add_argument("--index", required=True, help=f"the address of the public index, or {NONE!r}")
        if "out" in needed:
            step.add_argument("--out", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    try:
        print(_step(options))
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _step(options: argparse.Namespace) -> str:
    if options.step == "draft":
        return draft(options.wheelhouse, options.tag)
    if options.step == "open":
        return publish(options.tag)
    if options.out.exists():
        raise NotPublished(f"{options.out} is there already: it may hold what does not belong here")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{options.out.name}.", dir=options.out.parent) as folder:
        out = Path(folder) / "out"  # so that a step that fails leaves nothing, and can be repeated
        if options.step == "previous":
            said = f"{options.out}: {previous(options.index, out)} files of {options.index}"
        elif options.step == "stage":
            said = "\n".join(path.name for path in stage(options.wheelhouse, out))
        else:
            said = "\n".join(path.name for path in fetch(options.wheelhouse, options.index, out))
        out.rename(options.out)
    return said
