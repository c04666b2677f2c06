"""The documentation site: its sources, its refusals, and what make docs has built."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from precast._builder import catalogue, descriptions
from precast.errors import KernelError
from tests.kit import browser, spawn
from tests.kit.loopback import served
from tools.shared import op_pages, site_source
from tools.verbs import site as verb

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "docs"


def test_every_public_function_has_a_page_with_its_facts() -> None:
    pages = op_pages.pages(ROOT)
    assert set(pages) == {"index.md", *(f"{name}.md" for folder in catalogue.FOLDERS for name in folder.public)}
    rms = pages["rms_norm.md"]
    for words in (
        "| CPU | prebuilt",
        "AMD and Intel GPU | plain torch",
        "`rms_norm_backward`",
        "LigerRMSNormFunction",
    ):
        assert words in rms, words
    assert "no gradient formula" in pages["reshape_and_cache.md"] and "| NVIDIA GPU | none |" in pages["adam_.md"]


def test_no_page_of_an_op_lacks_a_part() -> None:
    lacking = {name: op_pages.lacking(ROOT, name) for name in op_pages.functions()}
    assert {name: parts for name, parts in lacking.items() if parts} == {}


@pytest.mark.parametrize(
    ("changed", "into", "says"),
    [
        ("Example::", "Like this:", "Example::"),
        ("Raises:", "Errors:", "Raises"),
        ("``x / sqrt(mean(x**2, -1) + eps) * weight``. Differentiable.", "The norm.", "a formula"),
    ],
)
def test_a_page_without_a_part_is_refused(changed: str, into: str, says: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc", ignore=shutil.ignore_patterns("*.c*", "*.h"))
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    module = tmp_path / "pkg" / "precast" / "ops" / "norm" / "_rms_norm.py"
    shutil.copytree(ROOT / module.parent.relative_to(tmp_path), module.parent)
    text = module.read_text(encoding="utf-8")
    assert op_pages.lacking(tmp_path, "rms_norm") == []
    module.write_text(text.replace(changed, into), encoding="utf-8")
    (lacks,) = op_pages.lacking(tmp_path, "rms_norm")
    assert lacks.startswith(says) and "pkg/precast/ops/norm" in lacks


def test_a_function_that_does_not_say_what_it_replaces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "replaces", lambda _csrc: {})
    assert op_pages.lacking(ROOT, "rms_norm") == ["[replaces.rms_norm] in csrc/norm/family.toml"]


def test_a_page_has_its_chart_or_says_that_there_is_none() -> None:
    pages = op_pages.pages(ROOT)
    assert "bars-rms_norm-backward.svg" in pages["rms_norm.md"] and "Longer is faster" in pages["rms_norm.md"]
    assert "Shorter is faster" in pages["adam_.md"] and "has no chart" in pages["get_cos_and_sin.md"]


def test_the_functions_of_today_say_what_they_replace() -> None:
    known = descriptions.replaces(ROOT / "csrc")
    assert known["rms_norm"]["torch"] == "`torch.nn.functional.rms_norm`" and set(known) <= set(op_pages.functions())
    assert len(known) > 20 and all("torch" in row or "vllm" in row for row in known.values())


def test_links_of_a_page_lead_to_its_copies() -> None:
    copies = site_source.where(ROOT)

    def turned(text: str, repository: str | None = None) -> str:
        return site_source.with_links(text, ROOT, "docs/guides/jit.md", copies, repository)

    assert (
        turned("[a](../../SECURITY.md#x) [b](../concepts/cache.md)")
        == "[a](../project/security.md#x) [b](../concepts/cache.md)"
    )
    assert turned("[c](../../Makefile)") == "c"
    assert turned("[c](../../Makefile)", "https://host/us") == "[c](https://host/us/blob/main/Makefile)"
    assert turned("```\n[d](../../Makefile)\n```") == "```\n[d](../../Makefile)\n```"
    assert turned("[e](https://pytorch.org) [f](#g)") == "[e](https://pytorch.org) [f](#g)"


def test_the_page_of_the_benchmarks_gets_every_figure_and_chart() -> None:
    text = (ROOT / site_source.BENCHMARKS).read_text(encoding="utf-8")
    made = site_source.with_figures(ROOT, text)
    assert "| rms_norm 32768x4096 |" in made and "| rms_norm 32768x4096 |" not in text
    for chart in (ROOT / "docs" / "benchmarks").glob("bars-*.svg"):
        assert made.count(f"](benchmarks/{chart.name})") == 1, chart.name
    with pytest.raises(KernelError, match="needed one line '<!-- charts -->'; found 0"):
        site_source.with_figures(ROOT, text.replace(site_source.CHARTS, ""))


def test_figures_that_cannot_be_read_end_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    (tmp_path / "docs" / "benchmarks" / "h200-cu130.json").write_text("{}", encoding="utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    with pytest.raises(KernelError, match="the table of all figures cannot be made"):
        site_source.with_figures(tmp_path, site_source.CHARTS + site_source.TABLE)


def test_docstrings_become_markdown() -> None:
    text = "See :func:`~precast.load`.\n\nExample::\n\n    x = 1\n\n    y = 2\n\nMore.\n"
    assert op_pages.as_markdown(text) == (
        "See `precast.load`.\n\n**Example**\n\n```python\nx = 1\n\ny = 2\n```\n\nMore.\n"
    )


def test_a_page_shows_its_example_before_the_arguments() -> None:
    for name in op_pages.functions():
        text = op_pages.docstring(ROOT, catalogue.folder_of(name), name)
        assert text.index("**Example**") < text.index("Args:"), name
        assert "this module" not in text, name


def test_the_list_of_ops_is_grouped_and_its_model_runs() -> None:
    text = op_pages.pages(ROOT)["index.md"]
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len([one for one in catalogue.FOLDERS if one.public])
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spawn.python("-c", code, env=spawn.environ(PYTHONPATH=ROOT / "pkg"))


def test_a_file_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://ok.example"></a><script defer src="https://cdn.example/x.js"></script>'
        '<link rel="stylesheet" href="//fonts.example/f.css"><link rel="canonical" href="https://ok.example">'
    )
    (tmp_path / "b.css").write_text(
        "@import 'https://fonts.example/g.css'; a { background: url(https://img.example/i) }"
    )
    found = [url for _, url in verb.loads(tmp_path)]
    assert found == [
        "https://cdn.example/x.js", "//fonts.example/f.css", "https://fonts.example/g.css", "https://img.example/i"
    ]  # fmt: skip


def test_the_decisions_of_the_list_are_the_pages() -> None:
    listed = {page for _, page in verb.decisions(ROOT)}
    assert listed == {f"decisions/{path.name}" for path in ROOT.glob("docs/decisions/*.md")} - {"decisions/README.md"}


def test_a_page_that_the_navigation_does_not_name_is_in_it() -> None:
    template = (ROOT / "tools" / "templates" / "mkdocs.yml").read_text(encoding="utf-8")
    assert verb.others(ROOT, template.replace("Settings: reference/settings.md", "")) == ["reference/settings.md"]


DEAD = """
import sys
from pathlib import Path
from tools.shared import site_source
from tools.verbs import site
weighted, folder, added = site_source.weighted, Path(sys.argv[1]), sys.argv[2]
site_source.weighted = lambda place, text: weighted(place, text) + (added if place == "support.md" else "")
site.WORK = folder / "work"
sys.exit(site.main(["--out", str(folder / "out")]))
"""


@pytest.mark.site
@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("\n[x](nowhere.md) [y](questions.md#no-such-heading)\n", ["nowhere.md", "no-such-heading"]),
        ('\n<img alt="" src="https://img.example/x.png">\n', ["support.html: https://img.example/x.png"]),
    ],
)
def test_a_dead_link_and_a_file_from_another_host_end_the_build(added: str, said: list[str], tmp_path: Path) -> None:
    env = spawn.environ(PYTHONPATH=f"{ROOT / 'pkg'}:{ROOT}")
    python = ROOT / ".venv-docs" / "bin" / "python"
    done = spawn.run(python, "-c", DEAD, tmp_path, added, cwd=ROOT, env=env, status=1)
    assert all(words in done.stderr for words in said), done.stderr


@pytest.mark.site
def test_the_site_has_a_page_for_each_op_and_the_selector() -> None:
    for name in op_pages.functions():
        page = (SITE / "reference" / "ops" / f"{name}.html").read_text(encoding="utf-8")
        assert '<h2 id="where-it-runs">' in page and ":::" not in page and "::</p>" not in page, name
    assert 'id="selector-data"' in (SITE / "guides/install.html").read_text(encoding="utf-8")
    assert list(verb.loads(SITE)) == []


@pytest.mark.site
@pytest.mark.chromium
def test_pages_load_nothing_from_another_host_and_search_in_the_browser() -> None:
    with served(SITE) as (address, _), browser.page() as page:
        for name in ("index.html", "guides/install.html", "benchmarks.html", "reference/ops/rms_norm.html"):
            page.open(f"{address}/{name}")
        page.evaluate(
            "document.querySelector('[data-md-toggle=search]').click();"
            "document.querySelector('.md-search__input').focus()"
        )
        page.call("Input.insertText", text="rms_norm")
        page.wait("document.querySelectorAll('.md-search-result__item').length > 2")
        first = page.evaluate("document.querySelector('.md-search-result__link').href")
        assert "reference/ops/rms_norm.html" in first
        assert [url for url in page.requests if not re.match(rf"{address}/|about:|data:|blob:", url)] == []


@pytest.mark.site
@pytest.mark.chromium
@pytest.mark.parametrize("by", ["http", "file"])
def test_the_search_answers_a_question_and_marks_its_words(by: str) -> None:
    """Also where the site is opened as files, from which a browser starts no worker."""
    with served(SITE) as (address, _), browser.page() as page:
        page.open(f"{address if by == 'http' else SITE.as_uri()}/index.html?q=undo%20adopt")
        page.evaluate("document.querySelector('.md-search__input').focus()")
        page.wait("document.querySelectorAll('.md-search-result__item').length > 1")
        item = "document.querySelector('.md-search-result__item')"
        assert "questions.html" in page.evaluate(f"{item}.querySelector('a').href")
        marked = page.evaluate(f"[...{item}.querySelectorAll('mark')].map(mark => mark.textContent.toLowerCase())")
        assert {"undo", "adopt,"} <= set(marked)


@pytest.mark.site
def test_keywords_of_a_place_that_is_not_there_end_the_build(tmp_path: Path) -> None:
    for name in ("search/search_index.json", "assets/javascripts/workers/a.js", "assets/javascripts/lunr/a.js"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('{"docs": [{"location": "questions.html"}]}')
    with pytest.raises(KernelError, match=r"keywords.toml names places that the site does not have: .*install.html"):
        verb._put_keywords(tmp_path)


@pytest.mark.site
@pytest.mark.chromium
def test_the_site_follows_the_system_between_light_and_dark() -> None:
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    with served(SITE) as (address, _), browser.page() as page:
        for dark, wanted in ((False, "default"), (True, "slate"), (False, "default")):
            page.look(dark=dark)
            page.open(f"{address}/guides/install.html")
            page.wait(f"{scheme} === '{wanted}'")
            assert page.evaluate(scheme) == wanted


@pytest.mark.site
@pytest.mark.chromium
def test_the_pictures_of_the_start_page_are_large_enough_to_read() -> None:
    with served(SITE) as (address, _), browser.page() as page:
        page.look(width=1200, height=900)
        page.open(f"{address}/index.html")
        widths = page.evaluate("[...document.querySelectorAll('article img')].map(image => image.clientWidth)")
    assert len(widths) == 2 and min(widths) >= 500  # they are drawn 600 and 960 wide
