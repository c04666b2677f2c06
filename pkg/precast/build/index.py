"""``python -m precast.build index WHEEL... -o SITE``: the pages of a package index, for any web server.

Each label has a folder, because wheels of two labels may have one name: ``pip install --index-url SITE/cu130 NAME``.
Wheels on the site stay; a new wheel of the same name with other bytes is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from precast._builder import index_pages, staging, wheel_file, xray
from precast._builder.staging import Staged
from precast.build import wheel as wheel_rules
from precast.core import verify
from precast.core.manifest import BuildInfo
from precast.errors import KernelError


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
    placed: dict[Path, Path] = {}
    for wheel in wheels:
        _refuse_unfit(wheel)
        folder = site / label_of(wheel) / index_pages.normal(xray.name_of(wheel)["name"])
        target = folder / wheel.name
        other = placed.setdefault(target, target if target.exists() else wheel)
        if other.read_bytes() != wheel.read_bytes():
            raise KernelError(
                f"{other} already exists with other bytes",
                found=f"sha256 {_digest(other)}, not {_digest(wheel)} as {wheel}",
                needed="another version: installers keep a file that they have seen",
                fix="raise the version, and build again",
            )
        placed[target] = wheel
    with staging.staged(site) as staged:
        for target, wheel in placed.items():
            if not target.exists():
                shutil.copyfile(wheel, staged.path(str(target.relative_to(site))))
            metadata = staged.path(str(target.relative_to(site).with_name(f"{target.name}.metadata")))
            metadata.write_bytes(wheel_rules.metadata(wheel))
        for project in sorted({target.parent.relative_to(site) for target in placed}):
            for wheel in (site / project).glob("*.whl"):  # also one that was copied here by hand
                if not wheel.with_name(f"{wheel.name}.metadata").exists():
                    staged.path(f"{project}/{wheel.name}.metadata").write_bytes(wheel_rules.metadata(wheel))
            _write(staged, project, _files(site / project, staged.path(f"{project}/index.html").parent))
        for index in sorted({target.parents[1].relative_to(site) for target in placed}):
            both = (site / index, staged.path(f"{index}/index.html").parent)
            names = {path.parent.name for folder in both for path in folder.glob("*/index.html")}
            _write(staged, index, index_pages.root(sorted(names)))
        staged.place()
    return list(placed)


def _refuse_unfit(wheel: Path) -> None:
    """KernelError for a wheel that no installer takes: a damaged file, or metadata of another project or version."""
    with xray.opened(wheel) as archive:
        for member in archive.files:
            for _ in archive.pieces(member):  # zipfile compares the checksum at the end
                pass
    name, said = xray.name_of(wheel), wheel_file.headers(wheel_rules.metadata(wheel))
    pairs = [(index_pages.normal(text), index_pages.normal(said.get(key, "")))
             for key, text in (("Name", name["name"]), ("Version", name["version"]))]  # fmt: skip
    if any(one != other for one, other in pairs):
        raise KernelError(
            f"{wheel} has another name than its metadata",
            found=f"{said.get('Name')} {said.get('Version')} in its METADATA",
            needed=f"{name['name']} {name['version']}, because installers compare both",
            fix="build the wheel again",
        )


def label_of(wheel: Path) -> str:
    """The label that all manifests of a wheel name; ``all`` if they name none, or more than one."""
    with xray.opened(wheel) as archive:
        ours = [one for one in archive.files if one.filename.endswith(f"_C/{verify.MANIFEST}")]
        labels = {BuildInfo.from_json(archive.read(one).decode()).label.text for one in ours}
    return labels.pop() if len(labels) == 1 and "" not in labels else "all"


def _files(project: Path, added: Path) -> dict[str, str]:
    """The pages of one project, from the wheels in its folder and the added ones, and the metadata next to them."""
    by_name = {wheel.name: wheel for folder in (project, added) for wheel in folder.glob("*.whl")}
    wheels, entries = [by_name[name] for name in sorted(by_name)], []
    for wheel in wheels:
        place = added if (added / f"{wheel.name}.metadata").is_file() else project
        metadata = (place / f"{wheel.name}.metadata").read_bytes()
        python = wheel_file.headers(metadata).get("Requires-Python")
        entries.append(index_pages.entry(wheel.name, _digest(wheel), wheel.stat().st_size, python, metadata))
    return index_pages.project(project.name, entries, (xray.name_of(wheel)["version"] for wheel in wheels))


def _write(staged: Staged, folder: Path, pages: dict[str, str]) -> None:
    for name, text in pages.items():
        staged.path(f"{folder}/{name}").write_text(text, encoding="utf-8")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
