"""Write the package index: a static site that pip and uv read, with a folder for each label.

What was published stays: files of the previous index are carried over byte for byte, and a file that was changed or
removed since is refused by name. A site that is there already counts as a previous one, unless --fresh says that nobody
has seen it. Exit status: 0; 1 when a file does not belong there, and then nothing is written.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from precast._builder import matrix
from precast._version import __version__
from precast.errors import KernelError
from tools.shared import selector
from tools.shared.dists import Dist, IndexRefused, read_wheelhouse
from tools.shared.pages import folder_of, pages
from tools.shared.published import Published, joined, read_site, read_yanks

ROOT = Path(__file__).resolve().parents[2]


def build(
    wheelhouse: Path, out: Path, before: Sequence[Published], known: matrix.Matrix, version: Version, yanks: Path
) -> tuple[Dist, ...]:
    """Check everything, write the site next to ``out``, then put it in place; return the served files."""
    labels = [spec.label.text for spec in known.labels]
    dists = joined(before, read_wheelhouse(wheelhouse, version, labels))
    yanked = read_yanks(yanks, dists, before)
    served = [dist for dist in dists if dist.filename not in yanked]
    texts = pages(dists, yanked, selector.data(known, served))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        site, old = Path(folder) / "site", Path(folder) / "old"
        write(site, dists, texts)
        with contextlib.ExitStack() as undo:
            if out.exists():
                undo.callback(_put_back, old, out)  # also after an interrupt between the two steps
                out.rename(old)  # deleted with the temporary folder; the new site has all of its files
            site.rename(out)
            undo.pop_all()
    return dists


def _put_back(old: Path, out: Path) -> None:
    if old.exists():
        old.rename(out)


def published(previous: Path | None, out: Path, *, fresh: bool) -> list[Published]:
    """The indexes that the new one must include: the previous one, and the one at ``out`` unless it was a trial."""
    if previous is not None and not previous.is_dir():
        raise IndexRefused(f"{previous}: no such folder; without --previous the index starts anew")
    empty = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    there = None if empty else read_site(out)  # read even if it may be a trial: only an index is ever replaced
    before = [] if previous is None or previous.resolve() == out.resolve() else [read_site(previous)]
    return before if there is None or fresh else [*before, there]


def write(site: Path, dists: Sequence[Dist], texts: dict[str, str]) -> None:
    """Write the pages, and next to each page its files with their metadata."""
    for name, text in texts.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    for dist in dists:
        target = site / folder_of(dist) / dist.filename
        shutil.copyfile(dist.source, target)
        if dist.core_metadata is not None:
            target.with_name(f"{dist.filename}.metadata").write_bytes(dist.core_metadata)


def main(arguments: list[str]) -> int:
    """Index a wheelhouse."""
    parser = argparse.ArgumentParser(prog="python -m tools index", description=__doc__)
    parser.add_argument("wheelhouse", type=Path, help="the wheels and the sdist of one version")
    parser.add_argument("--out", type=Path, required=True, metavar="SITE", help="the folder to write")
    parser.add_argument("--previous", type=Path, metavar="SITE", help="the index as it was published last")
    parser.add_argument("--fresh", action="store_true", help="SITE was never published: write it anew")
    parser.add_argument(
        "--version", type=Version, default=Version(__version__), help=f"the version of the release ({__version__})"
    )
    parser.add_argument("--yanked", type=Path, default=ROOT / "yanked.toml", help="what is yanked, and why")
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.toml")
    options = parser.parse_args(arguments)
    try:
        known = matrix.load(options.matrix)
        before = published(options.previous, options.out, fresh=options.fresh)
        dists = build(options.wheelhouse, options.out, before, known, options.version, options.yanked)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    folders = sorted({folder_of(dist) for dist in dists})
    print(f"{options.out}: {len(dists)} files of {sum(dist.size for dist in dists)} bytes in {', '.join(folders)}")
    return 0
