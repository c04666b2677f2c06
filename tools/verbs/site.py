"""Build the documentation site: static files that load nothing from another host, with a search that works offline.

A warning of mkdocs ends the build, such as a link that leads nowhere. Exit status: 0; 1 when the site cannot be built,
or when one of its files would load something from elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jinja2

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from precast._builder import matrix, metadata
from precast._version import __version__
from precast.errors import KernelError
from tools.shared import op_pages, selector, site_source, versions
from tools.shared.pages import selector_part

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "site-source"
# What makes a browser load a file: attributes of elements that fetch, and url() and @import of a style sheet.
_ELEMENT = re.compile(
    r"<(?:script|img|iframe|source|embed|link(?=[^>]*rel=[\"']?(?:stylesheet|icon|pre|dns|module)))\b[^>]*?"
    r"\s(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
)
_STYLE = re.compile(r"(?:url\(|@import\s)[\"']?((?:https?:)?//[^\"')]+)")


def build(out: Path, repository: str | None, index: str) -> None:
    """Gather the pages and build the site into ``out``. KernelError quotes mkdocs, or names what would be loaded."""
    pages, package, settings = WORK / "pages", WORK / "package", WORK / "mkdocs.yml"
    shutil.rmtree(WORK, ignore_errors=True)
    site_source.write(ROOT, pages, package, repository)
    text = (ROOT / "tools" / "templates" / "mkdocs.yml").read_text(encoding="utf-8")
    template = jinja2.Template(text, trim_blocks=True, lstrip_blocks=True)
    values = {"pages": pages, "package": package, "out": out.resolve(), "ops": op_pages.functions()}
    values |= {"theme": ROOT / "tools" / "templates" / "theme"}
    values |= {"modules": site_source.MODULES, "decisions": decisions(ROOT), "others": others(ROOT, text)}
    settings.write_text(template.render(values), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme's authors about another program
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        said = "\n  ".join(line for line in lines if line and not line.startswith("INFO"))
        raise KernelError(f"mkdocs refuses the site\n  {said}")
    _put_selector(out / "guides" / "install.html", index)
    _put_keywords(out)
    foreign = [f"{path.relative_to(out)}: {url}" for path, url in loads(out)]
    if foreign:
        raise KernelError("\n  ".join(("the site would load files from another host", *foreign)))


def _put_selector(page: Path, index: str) -> None:
    """Replace the placeholder of the page with the selector, for an index at this address."""
    known = matrix.load(ROOT / "matrix.toml")
    part = selector_part(selector.planned(known, __version__, index))
    text, count = re.subn(r'<div id="install-selector">.*?</div>', lambda _: part, page.read_text(encoding="utf-8"))
    if count != 1:
        raise KernelError(f"{page.name}: needed one place for the selector; found {count}")
    page.write_text(text, encoding="utf-8")


def _put_keywords(out: Path) -> None:
    """Give each place of the search index its keywords, also for files without a server; drop the theme's own search.

    KernelError for keywords of a place that the site does not have.
    """
    table = tomllib.loads((ROOT / "tools" / "templates" / "keywords.toml").read_text(encoding="utf-8"))
    path = out / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for doc in index["docs"]:
        if keywords := table.pop(doc["location"], ""):
            doc["keywords"] = keywords
    if table:
        raise KernelError(f"keywords.toml names places that the site does not have: {', '.join(table)}")
    text = json.dumps(index, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".js").write_text(f"var __index = {text}", encoding="utf-8")
    for unused in ("workers", "lunr"):
        shutil.rmtree(out / "assets" / "javascripts" / unused)


def decisions(root: Path) -> list[tuple[str, str]]:
    """Title and page of each decision, in the order of their list."""
    listed = (root / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    return [
        (title, f"decisions/{page}") for title, page in re.findall(r"^\* \[(.+?)\]\((\S+\.md)\)", listed, re.MULTILINE)
    ]


def others(root: Path, template: str) -> list[str]:
    """The pages that the navigation does not name: they stand at the end of the reference."""
    pages = site_source.where(root).values()
    return [page for page in pages if f" {page}\n" not in template and not page.startswith("decisions/")]


def loads(site: Path) -> Iterator[tuple[Path, str]]:
    """Each file that a browser would load from another host, with the page or style sheet that asks for it."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            text = path.read_text(encoding="utf-8")
            yield from ((path, url) for url in (*_ELEMENT.findall(text), *_STYLE.findall(text)))


def main(arguments: list[str]) -> int:
    """Build the site."""
    parser = argparse.ArgumentParser(prog="python -m tools site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--index",
        default="",
        metavar="URL",
        help="the index that the selector's commands name, as seen from the site (none: wheels built from a checkout)",
    )
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="DIR",
        help="the published documentation: write DIR's versions and this one, each below its version (none: this one)",
    )
    options = parser.parse_args(arguments)
    pages = options.out if options.previous is None else WORK / "site"
    try:
        build(pages, metadata.repository(ROOT) or None, options.index)
        if options.previous is not None:
            versions.assemble(pages, options.out, __version__, options.previous)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    files = [path for path in options.out.rglob("*") if path.is_file()]
    print(f"{options.out}: {len(files)} files of {sum(path.stat().st_size for path in files)} bytes")
    return 0
