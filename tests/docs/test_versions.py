"""Versioned documentation: old pages stay as they were published, and a page leads to those of other versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precast.errors import KernelError
from tests.docs.test_site import SITE
from tests.kit import browser
from tests.kit.loopback import served
from tools.shared import versions


def built(folder: Path, text: str) -> Path:
    (folder / "guides").mkdir(parents=True)
    for page in ("index.html", "guides/install.html"):
        (folder / page).write_text(text)
    return folder


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The documentation after the release of 1.0."""
    before = tmp_path / "none"
    before.mkdir()
    (before / versions.LIST).write_text("[]")
    assert versions.assemble(built(tmp_path / "b1", "one"), tmp_path / "first", "1.0", before) == ["1.0"]
    return tmp_path / "first"


def listed(folder: Path) -> dict[str, list[str]]:
    return {entry["version"]: entry["aliases"] for entry in json.loads((folder / versions.LIST).read_text())}


def test_an_older_version_stays_and_latest_moves(first: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    assert versions.assemble(built(tmp_path / "b2", "two"), second, "1.10", first) == ["1.10", "1.0"]
    assert (second / "1.0/guides/install.html").read_text() == "one"
    assert (second / "latest/guides/install.html").read_text() == (second / "1.10/index.html").read_text() == "two"
    assert (second / "1.0.zip").read_bytes() == (first / "1.0.zip").read_bytes()
    assert (
        listed(second) == {"1.10": ["latest"], "1.0": []} and "latest/index.html" in (second / "index.html").read_text()
    )
    assert versions.assemble(built(tmp_path / "b3", "old"), tmp_path / "third", "1.2", second) == ["1.10", "1.2", "1.0"]
    assert listed(tmp_path / "third")["1.10"] == ["latest"], "a fix of an older version is not the latest"


def test_a_release_candidate_is_not_the_latest(first: Path, tmp_path: Path) -> None:
    versions.assemble(built(tmp_path / "b2", "two"), tmp_path / "second", "1.1rc1", first)
    assert listed(tmp_path / "second") == {"1.1rc1": [], "1.0": ["latest"]}
    assert (tmp_path / "second/latest/index.html").read_text() == "one"


def test_a_published_version_keeps_its_pages(first: Path, tmp_path: Path) -> None:
    versions.assemble(built(tmp_path / "b2", "changed"), tmp_path / "again", "1.0", first)
    assert (tmp_path / "again/latest/index.html").read_text() == "one"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda site: (site / "1.0.zip").write_bytes(b"other"), "1.0.zip: changed after publication"),
        (lambda site: (site / "1.0.zip").unlink(), "1.0.zip: removed after publication"),
        (lambda site: (site / versions.LIST).unlink(), "not the list of a documentation"),
        (lambda site: (site / versions.LIST).write_text('[{"version": "../1"}]'), "not the list of a documentation"),
        (
            lambda site: (site / versions.LIST).write_text('[{"version": "v1.0", "properties": {"sha256": ""}}]'),
            "its version 'v1.0' is not one",
        ),
    ],
)
def test_pages_that_changed_since_are_refused(harm, says: str, first: Path, tmp_path: Path) -> None:
    harm(first)
    with pytest.raises(KernelError, match=says):
        versions.assemble(built(tmp_path / "b2", "two"), tmp_path / "second", "1.1", first)
    assert not (tmp_path / "second").exists()


def test_a_folder_that_is_there_is_refused(first: Path, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="is there already"):
        versions.assemble(tmp_path / "b1", first, "1.1", first)


@pytest.mark.site
@pytest.mark.chromium
def test_a_page_has_the_switch_and_an_old_one_says_so(first: Path, tmp_path: Path) -> None:
    for version, before in (("1.1", first), ("1.2", tmp_path / "1.1")):
        versions.assemble(SITE, tmp_path / version, version, before)
    with served(tmp_path / "1.2") as (address, _), browser.page() as page:
        hidden = "document.querySelector('[data-md-component=outdated]').hidden"
        for place, wanted in (("latest", True), ("1.1", False)):
            page.open(f"{address}/{place}/guides/install.html")
            page.wait("document.querySelectorAll('.md-version__link').length === 3")
            page.wait(f"{hidden} === {str(wanted).lower()}")
            assert page.evaluate(hidden) is wanted
        links = page.evaluate(
            "[...document.querySelectorAll('.md-version__link')].map(link => link.textContent.trim())"
        )
        assert links == ["1.2", "1.1", "1.0"]
        assert page.evaluate("document.querySelector('.md-banner a').href") == f"{address}/latest/index.html"
