"""``python -m precast.build index WHEEL... -o SITE``: the pages of a package index, for any web server.

Each label has a folder, because wheels of two labels may have one name: ``pip install --index-url SITE/cu130 NAME``.
What the site has stays: a wheel of the same name with other bytes is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from email import message_from_bytes
from pathlib import Path
from urllib.parse import quote

from precast._abi.build_info import BuildInfo
from precast._builder import archives, xray
from precast._load import prebuilt
from precast.build import wheel as wheel_rules
from precast.errors import KernelError

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="pypi:repository-version" content="1.0"><title>{title}</title></head>
<body>
{links}
</body>
</html>
"""


def main(arguments: Sequence[str]) -> int:
    """Add wheels to a site. Exit status 1: a file that is no wheel, or one that the site has with other bytes."""
    parser = argparse.ArgumentParser(prog="python -m precast.build index", description=__doc__)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="SITE", help="the folder of the site")
    options = parser.parse_args(arguments)
    try:
        add(options.wheels, options.out)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def add(wheels: Iterable[Path], site: Path) -> list[Path]:
    """Put wheels into their folders of a site, write its pages, and return where the wheels are.

    KernelError for a file that is no wheel, and for a wheel that the site has with other bytes.
    """
    placed = []
    for wheel in wheels:
        match = xray.NAME.fullmatch(wheel.name)
        if match is None:
            raise KernelError(f"{wheel.name} is not the name of a wheel")
        folder = site / label_of(wheel) / _normal(match["name"])
        target = folder / wheel.name
        if target.exists() and target.read_bytes() != wheel.read_bytes():
            raise KernelError(
                f"{target} is there with other bytes",
                found=f"sha256 {_digest(target)}, not {_digest(wheel)}",
                needed="another version: installers keep a file that they have seen",
            )
        placed.append((wheel, target))
    for wheel, target in placed:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copyfile(wheel, target)
        target.with_name(f"{target.name}.metadata").write_bytes(wheel_rules.metadata(target))
    for project in sorted({target.parent for _, target in placed}):
        (project / "index.html").write_text(_files(project), encoding="utf-8")
    for index in sorted({target.parents[1] for _, target in placed}):
        names = sorted(path.parent.name for path in index.glob("*/index.html"))
        links = "\n".join(f'<a href="{name}/">{name}</a><br>' for name in names)
        (index / "index.html").write_text(_PAGE.format(title="Simple index", links=links), encoding="utf-8")
    return [target for _, target in placed]


def label_of(wheel: Path) -> str:
    """The label that all manifests of a wheel name; ``all`` if they name none, or more than one."""
    try:
        with archives.open_zip(wheel) as archive:
            ours = [one for one in archive.files if one.filename.endswith(f"_C/{prebuilt.MANIFEST}")]
            labels = {BuildInfo.from_json(archive.read(one).decode()).label.text for one in ours}
    except archives.BadArchive as error:
        raise KernelError(f"{wheel} cannot be read as a wheel: {error}") from error
    return labels.pop() if len(labels) == 1 and "" not in labels else "all"


def _files(project: Path) -> str:
    """The page of one project (PEP 503), with hashes, metadata (PEP 714) and Requires-Python."""
    links = []
    for wheel in sorted(project.glob("*.whl")):
        metadata = wheel.with_name(f"{wheel.name}.metadata")
        python = message_from_bytes(metadata.read_bytes()).get("Requires-Python")
        wanted = f' data-requires-python="{html.escape(python)}"' if python else ""
        said = f' data-core-metadata="sha256={_digest(metadata)}"'
        links.append(f'<a href="{quote(wheel.name)}#sha256={_digest(wheel)}"{wanted}{said}>{wheel.name}</a><br>')
    return _PAGE.format(title=f"Links for {project.name}", links="\n".join(links))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
