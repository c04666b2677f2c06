"""The sources of the documentation site: the pages of ``docs``, those beside the code, and those that are derived.

A page keeps the links that a forge follows. Here each link is turned to the page's copy on the site, to the repository
if its address is known, or to plain text.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from precast.errors import KernelError
from tools.shared import op_pages

# Pages outside ``docs`` that the site has too.
BESIDE = (
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "csrc/README.md", "csrc/DEVELOP.md",
    "csrc/FAMILY.md", "tests/ATTACKS.md", "examples/edits/README.md",
    "examples/image_ops/README.md", "examples/rowstats/README.md", "examples/rowwise/README.md",
)  # fmt: skip
# The modules of the reference that is made from docstrings, with the name of the page.
MODULES = ("precast", "optim", "nn", "extension", "kernel_loader", "build", "errors", "jit")
# How much a page counts in the search: guides for users come before notes for those who work on precast.
WEIGHTS = {"guides/": 2, "questions.md": 4, "decisions/": 0.2, "project/": 0.3, "evidence/": 0.3}
WEIGHTS |= {"reference/python/": 0.7}
COMBINED = 0.5  # of an op that does what several do
START = "README.md"
BENCHMARKS = "docs/benchmarks.md"
CHARTS, TABLE = "<!-- charts -->\n", "<!-- gpu_table -->\n"
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def write(root: Path, pages: Path, package: Path, repository: str | None) -> None:
    """Write every page below ``pages``, and below ``package`` the Python sources with docstrings in Markdown."""
    for path in sorted((root / "docs").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            target = pages / path.relative_to(root / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    copies = where(root)
    for name, place in copies.items():
        text = (root / name).read_text(encoding="utf-8")
        if name == BENCHMARKS:
            text = with_figures(root, text)
        _write(pages / place, weighted(place, with_links(text, root, name, copies, repository)))
    ops = op_pages.pages(root)
    for name, text in ops.items():
        several = any(
            one != name and one.removesuffix(".md") in name for one in ops
        )  # who asks for one wants that page
        _write(pages / "reference" / "ops" / name, _with_boost(text, COMBINED if several else 1))
    for module in MODULES:
        reference = f"reference/python/{module}.md"
        _write(pages / reference, weighted(reference, module_page(root, module)))
    for path in sorted((root / "pkg" / "precast").rglob("*.py")):
        _write(package / path.relative_to(root / "pkg"), op_pages.as_markdown(path.read_text(encoding="utf-8")))


def with_figures(root: Path, text: str) -> str:
    """The page of the benchmarks with the charts that it does not show, and the table of all figures, both folded.

    KernelError if the page has no place for one of them.
    """
    for mark in (CHARTS, TABLE):
        if text.count(mark) != 1:
            raise KernelError(f"{BENCHMARKS}: needed one line {mark.strip()!r}; found {text.count(mark)}")
    folder = root / "docs" / "benchmarks"
    charts = [path for path in sorted(folder.glob("bars-*.svg"), key=lambda path: path.stem) if path.name not in text]
    shown = [f"![{path.stem.removeprefix('bars-')}](benchmarks/{path.name})" for path in charts]
    command = [sys.executable, "-m", "benchmarks.gpu_table", *map(str, sorted(folder.glob("h200-*.json")))]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(f"{BENCHMARKS}: the table of all figures cannot be made\n{done.stderr}")
    text = text.replace(CHARTS, _folded("A chart for each op", "\n".join(shown)))
    return text.replace(TABLE, _folded("Every figure", done.stdout))


def _folded(summary: str, text: str) -> str:
    return f'<details markdown="1"><summary>{summary}</summary>\n\n{text}\n\n</details>\n'


def where(root: Path) -> dict[str, str]:
    """Page of the repository -> its place on the site."""
    docs = {path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md")}
    beside = {name: f"project/{name.replace('/README', '').replace('/', '-').lower()}" for name in BESIDE}
    return {**{name: name.removeprefix("docs/") for name in sorted(docs)}, **beside}


def weighted(place: str, text: str) -> str:
    """The text of a page with its weight in the search, as the theme reads it; pictures have the start page's width."""
    if place == START:
        return f"---\nhide: [navigation, toc]\n---\n\n{text}"
    weight = next((weight for start, weight in WEIGHTS.items() if place.startswith(start)), 1)
    return _with_boost(text, weight)


def _with_boost(text: str, weight: float) -> str:
    return text if weight == 1 else f"---\nsearch: {{ boost: {weight} }}\n---\n\n{text}"


def with_links(text: str, root: Path, page: str, copies: Mapping[str, str], repository: str | None) -> str:
    """The text of a page with links for its copy; code blocks are left as they are."""
    here = Path(copies[page]).parent

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return found[0]
        name = os.path.normpath((root / page).parent / path).removeprefix(f"{root}/")
        place = copies.get(name, copies.get(f"{name}/README.md"))
        if place is None and name.startswith("docs/"):
            place = name.removeprefix("docs/")
        if place is not None:
            return f"{mark}[{words}]({os.path.relpath(place, here)}{'#' if anchor else ''}{anchor})"
        return f"[{words}]({repository}/blob/main/{name})" if repository else words

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def module_page(root: Path, module: str) -> str:
    """The reference of one module from docstrings: its own, then each public name in order."""
    name = "precast" if module == "precast" else f"precast.{module}"
    shown = [f"::: {member}\n" for member in members(root, module)]
    return "\n".join(
        (f"# `{name}`\n", f"::: {name}", "    options: { members: false, show_root_heading: false }\n", *shown)
    )


def members(root: Path, module: str) -> list[str]:
    """The dotted names that the page of a module shows: its literal ``__all__``, or else its public classes."""
    if module == "precast":
        return [
            *("precast._adopt.run.adopt", "precast._adopt.run.undo_adopt", "precast._adopt.hub.kernel_mapping"),
            *("precast._loading.load", "precast._loading.prebuild", "precast._load.source.Loaded"),
        ]
    folder = root / "pkg" / "precast" / module
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node in body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            return [f"precast.{module}.{name}" for name in ast.literal_eval(node.value)]
    classes = [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [f"precast.{module}.{name}" for name in classes]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
