"""The README and the links of the package's metadata."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from precast._builder import matrix, metadata
from precast._builder.tables import MatrixError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
US = "https://host/us/precast"


def test_relative_links_of_the_readme_lead_to_the_repository() -> None:
    text = "[a](docs/a.md#x) [b](https://example.org) [c](#here) ![d](docs/d.svg) [![e](docs/e.png)](docs/e.md)"
    assert metadata.absolute(text, US) == (
        f"[a]({US}/blob/main/docs/a.md#x) [b](https://example.org) [c](#here) ![d]({US}/raw/main/docs/d.svg) "
        f"[![e]({US}/raw/main/docs/e.png)]({US}/blob/main/docs/e.md)"
    )
    assert metadata.absolute("[a](docs/a.md) ![d](docs/d.svg)!", "") == "a !"


@pytest.mark.parametrize("address", ["", US])
def test_no_relative_link_is_left_in_the_package(address: str) -> None:
    text = metadata.absolute((ROOT / "README.md").read_text(encoding="utf-8"), address)
    assert re.findall(r"\]\((?!https:|#)[^)]*\)", text) == []
    assert len(text) > 4000


def test_the_address_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("[a](b.md)")
    (tmp_path / "pyproject.toml").write_text(f'[tool.precast]\nrepository = "{US}"\n')
    found = metadata.for_setup(tmp_path)
    assert found["long_description"] == f"[a]({US}/blob/main/b.md)"
    assert found["project_urls"] == {
        "Homepage": US,
        "Documentation": f"{US}/blob/main/docs/README.md",
        "Source": US,
        "Issues": f"{US}/issues",
        "Changelog": f"{US}/blob/main/CHANGELOG.md",
    }
    (tmp_path / "pyproject.toml").write_text('[tool.precast]\nrepository = ""\n')
    assert metadata.for_setup(tmp_path)["project_urls"] == {}


@pytest.mark.parametrize("wrong", ['repository = "host/us"', 'repository = "https://host/us/"', "repository = 1", ""])
def test_a_wrong_address_is_refused(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.precast]\n{wrong}\n")
    with pytest.raises(MatrixError, match=r"tool\.precast"):
        metadata.repository(tmp_path)


def test_this_checkout_has_a_valid_setting() -> None:
    assert metadata.repository(ROOT) == "" or metadata.repository(ROOT).startswith("https://")


def test_the_metadata_is_complete_and_names_the_pythons_of_the_matrix() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"description", "license", "license-files", "authors", "keywords", "requires-python"} <= set(project)
    assert set(project["dynamic"]) == {"version", "readme", "urls"}
    known = matrix.load(ROOT / "matrix.toml")
    wanted = {str(python) for release in known.releases for found in release.pythons.values() for python in found}
    start = "Programming Language :: Python :: "
    named = {text.removeprefix(start) for text in project["classifiers"] if re.match(rf"{start}3\.\d+$", text)}
    assert named == {python for python in wanted if int(python.partition(".")[2]) >= 10}
