"""What the front door says is so: links lead somewhere, pins are named once, targets and tables are those there are."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import pytest

from tests.kit import forked

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md"), *ROOT.glob("csrc/*.md")])
# Packages of somebody else have Makefiles and commands of their own.
DOWNSTREAM = sorted(ROOT.glob("examples/**/*.md"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def broken_links(page: Path, text: str) -> list[str]:
    """List the relative links of a page that lead to no file, or to no heading in it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and anchor not in headings(target.read_text(encoding="utf-8") if path else text)
        ):
            broken.append(link)
    return broken


def headings(text: str) -> set[str]:
    """The anchors that a Markdown page offers, spelled as forges spell them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *DOWNSTREAM], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "# One two\n[a](README.md) [b](nowhere.md) [c](#one-two) [d](#three) [e](https://example.org)"
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md", "#three"]


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("page", ["README.md", "docs/questions.md", "docs/README.md", "docs/guides/jit.md"])
def test_the_examples_run(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    here = "import precast\n" + "".join(blocks).replace('"cuda"', '"cpu"')
    env = {**os.environ, "PYTHONPATH": str(ROOT / "pkg")}
    done = forked.run(here, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if page == "README.md":
        printed = re.findall(
            r"<!-- printed -->\n```text\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
        )
        assert "".join(map(without_figures, printed)) == without_figures(done.stdout)


def without_figures(text: str) -> str:
    """A report of ``adopt`` without what differs by machine and torch: versions, seconds, differences, counts."""
    text = re.sub(r"^precast .*$", "precast", text, flags=re.MULTILINE)
    text = re.sub(r"^  (\w+)\b.*(holds)$", r"\1 \2", text, flags=re.MULTILINE)
    return re.sub(r"\d+ (decisive)", r"\1", text)


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    return set(phony[1].split())


@pytest.mark.parametrize("page", [*PAGES, *WORKFLOWS, ROOT / ".ci" / "run"], ids=lambda page: page.name)
def test_only_targets_that_exist_are_named(page: Path) -> None:
    named = set(re.findall(r"(?:`|\n|^|run: |step )(?:[A-Z]+=\S+ )*make ([a-z-]+)", page.read_text(encoding="utf-8")))
    assert named <= make_targets() | {"made"}


def test_no_page_for_users_names_a_module_of_ours_that_is_private() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("guides/*.md"), *(ROOT / "docs").glob("reference/*.md")]
    found = {page.name: re.findall(r"precast\._[a-z][\w.]*", page.read_text(encoding="utf-8")) for page in pages}
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_every_target_does_something() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in make_targets():
        assert re.search(rf"^{target}:.*\n\t\S", makefile, re.MULTILINE), target


def test_the_tools_have_what_they_import() -> None:
    """A workflow installs the group ``tools`` alone, so a verb that needs more would fail there first."""
    ours = {"precast", "tools", *sys.stdlib_module_names}
    names = {"elftools": "pyelftools", "yaml": "pyyaml", "cyclonedx": "cyclonedx-python-lib"}
    names["packageurl"] = names["cyclonedx"]  # the library hands out values of this one, which it brings along
    group = re.search(
        r"^tools = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert group is not None
    has = set(re.findall(r'"([\w-]+)', group[1])) | {"torch"}  # which smoke_check finds in an environment of its own
    for path in sorted((ROOT / "tools").rglob("*.py")):
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", _code(path), re.MULTILINE)) - ours
        assert {names.get(name, name) for name in imported} <= has, path


def _code(path: Path) -> str:
    """A file without its texts."""
    return re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_readme_names_the_pinned_torch() -> None:
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert f"torch {pinned[1]}" in (ROOT / "README.md").read_text(encoding="utf-8")


LABELLED_PAGES = [ROOT / "README.md", ROOT / "docs" / "guides" / "install.md"]


@pytest.mark.parametrize("page", LABELLED_PAGES, ids=lambda page: page.name)
def test_the_install_tables_name_the_labels_and_targets_of_the_matrix(page: Path) -> None:
    matrix = (ROOT / "matrix.toml").read_text(encoding="utf-8")
    sections = re.findall(r"^\[labels\.(cu\d+)\]\n(?:.+\n)*?sass = \[(.+)\]$", matrix, re.MULTILINE)
    wanted = {label: targets.replace('"', "") for label, targets in sections}
    rows = re.findall(r"^\| `(cu\d+)` \|(?:.*)\| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    named = dict(rows)
    assert named == wanted and len(wanted) > 1


def test_nothing_names_the_machine_it_was_written_on() -> None:
    places = re.compile(r"/(?:root|home)/\w")
    for page in [*PAGES, *WORKFLOWS, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]:
        assert not places.search(page.read_text(encoding="utf-8")), page


VISIBLE = re.compile(r"\bassert|\b(?:raises|warns|fail|opcheck|gradcheck|gradgradcheck)\(|# fails if \w")


def silent_tests(path: Path, text: str) -> list[str]:
    """The tests of a file that neither assert anything a reader can see nor say by a comment when they fail."""
    tests = [
        node
        for node in ast.walk(ast.parse(text, str(path)))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    lines = text.splitlines()
    bodies = {
        test.name: lines[test.lineno if test.returns is None else test.returns.lineno : test.end_lineno]
        for test in tests
    }
    return [name for name, body in bodies.items() if not VISIBLE.search("\n".join(body))]


def test_every_test_says_what_fails() -> None:
    silent = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names = silent_tests(path, path.read_text(encoding="utf-8"))
        if names:
            silent[path.relative_to(ROOT).as_posix()] = names
    assert silent == {}, "add an assertion, or a comment that begins with `# fails if`"


def test_a_silent_test_is_found() -> None:
    text = (
        "def test_assert_in_its_name(\n    assert_right: Check,\n) -> None:\n    run()\n"
        "def test_helper():\n    assert_right(run())\n"
        "def test_error():\n    with pytest.raises(ValueError):\n        run()\n"
        "def test_comment():\n    # fails if run() raises\n    run()\n"
        "def helper():\n    run()\n"
    )
    assert silent_tests(Path("test_x.py"), text) == ["test_assert_in_its_name"]


def typed_blocks(code: str) -> list[str]:
    """The texts of a module that spell a line of an error, which precast.errors writes from values."""
    texts = (node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
    return [text for text in texts if isinstance(text, str) and re.search(r"\n  (found|needed|fix) {2}", text)]


@pytest.mark.parametrize("folder", ["pkg/precast", "tools"])
def test_an_error_is_a_value(folder: str) -> None:
    files = (ROOT / folder).rglob("*.py")
    assert {str(path): typed for path in files if (typed := typed_blocks(path.read_text(encoding="utf-8")))} == {}


def test_a_typed_block_is_found() -> None:
    assert typed_blocks(r'raise KernelError(f"{a} is gone\n  found   {b}")') == [" is gone\n  found   "]
