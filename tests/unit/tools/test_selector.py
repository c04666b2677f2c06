"""The landing page: its answers against a table written by hand, and a page that needs nothing but itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from precast._builder import matrix
from tests.kit.wheels import make_wheel
from tools.shared import pages, selector
from tools.shared.dists import Dist, read_dist

KNOWN = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
CUDA = ("cu121", "cu124", "cu126", "cu128", "cu129", "cu130", "cu132")

# The label for a GPU with a driver for CUDA 12.8 and one for 13.0, when all are published, and what it brings: code for
# exactly this GPU (=), for its generation (~), PTX (p), or code that is built at its first use (j).
TABLE = """
7.0   cu129= cu129=
7.5   cu129= cu132=
8.0   cu129= cu132=
8.6   cu129= cu132=
8.7   cu129j cu132j
8.9   cu129~ cu132~
9.0   cu129= cu132=
10.0  cu129= cu132=
10.3  cu129~ cu132~
11.0  cu128p cu132=
12.0  cu129= cu132=
12.1  cu129~ cu132~
"""
CODES = {"=": selector.SASS, "~": selector.SAME_MAJOR, "p": selector.PTX, "j": selector.JIT}


def published(folder: Path, *labels: str, version: str = "1.0") -> list[Dist]:
    return [read_dist(make_wheel(folder, version=f"{version}+{label}" if label else version)) for label in labels]


def test_the_answers_are_those_of_the_table(tmp_path: Path) -> None:
    data = selector.data(KNOWN, published(tmp_path, *CUDA, "cpu", ""))
    choice = data["choice"]["x86_64"]
    assert data["cpu"] == ["x86_64"]
    for row in TABLE.strip().splitlines():
        gpu, *wanted = row.split()
        for driver, word in zip(("12.8", "13.0"), wanted, strict=True):
            assert choice[driver][gpu] == [word[:-1], CODES[word[-1]]], (gpu, driver)
    assert set(choice["12.8"]) == set(selector.GPUS)


def test_one_label_serves_different_machines() -> None:
    """By hand: only CUDA 12 has Volta, of its labels cu128 and cu129 have Blackwell, and only CUDA 13 has Thor."""
    codes = selector.planned(KNOWN, "1.0", selector.HERE)["codes"]
    fleet = [("x86_64", "12.1", "7.0"), ("x86_64", "13.0", "8.0"), ("x86_64", "12.4", "8.9"), ("x86_64", "13.2", "9.0")]
    assert selector.common(codes, [*fleet, ("aarch64", "13.0", "12.1")]) == ("cu129", selector.SAME_MAJOR)
    assert selector.common(codes, fleet[1:2] + fleet[3:]) == ("cu132", selector.SASS)
    assert selector.common(codes, [("aarch64", "13.0", "11.0"), ("x86_64", "12.4", "7.0")])[1] == selector.PTX


def test_only_what_is_published_is_offered(tmp_path: Path) -> None:
    data = selector.data(KNOWN, published(tmp_path, "cu121", "cu130"))
    assert list(data["labels"]) == ["cu121", "cu130"]
    assert data["cpu"] == []
    assert data["choice"]["x86_64"]["12.8"]["12.0"] == ["cu121", selector.PTX]
    assert data["choice"]["aarch64"]["13.0"] == {}
    assert {entry["version"] for entry in data["torch"]} == {release.version for release in KNOWN.releases}


def test_a_candidate_is_offered_only_while_there_is_nothing_else(tmp_path: Path) -> None:
    first = published(tmp_path, "cu121", version="1.0rc1")
    assert selector.data(KNOWN, first)["version"] == "1.0rc1"
    more = [*first, *published(tmp_path, "cpu", version="0.9"), *published(tmp_path, "cu130", version="1.1rc1")]
    data = selector.data(KNOWN, more)
    assert (data["version"], list(data["labels"])) == ("0.9", ["cpu"])
    assert selector.data(KNOWN, [])["version"] is None


@pytest.mark.parametrize("labels", [(), ("cu121", "cpu", "")])
def test_the_page_needs_nothing_but_itself(tmp_path: Path, labels: tuple[str, ...]) -> None:
    dists = published(tmp_path, *labels)
    data: dict[str, Any] = selector.data(KNOWN, dists)
    found = pages.pages(dists, {}, data)
    page = found["index.html"]
    # The root of an index has one link for each project, and this one has one project (PEP 503).
    assert re.findall(r"<a\b[^>]*>", page) == ['<a href="precast/">']
    assert not re.search(r"https?:|//[a-z]|<link|<img|@import|url\(|src=", page.replace("://", ""))
    if not labels:
        assert "Nothing has been published yet" in page and json.loads(found["selector.json"]) == data
        return
    embedded = re.search(r'<script type="application/json" id="selector-data">(.*)</script>', page)
    assert embedded is not None
    assert json.loads(embedded[1]) == json.loads(found["selector.json"]) == data
    assert "Nothing has been published yet" not in page


def test_what_a_build_of_torch_cannot_use_is_known() -> None:
    """By hand: CUDA 13 dropped Volta, CUDA 12.8 brought Blackwell; the torch of a Jetson is not on torch's index."""
    data = selector.planned(KNOWN, "1.0", "$INDEX")
    assert data["no_code"]["cu130"] == ["7.0"] and data["no_code"]["cpu"] == []
    assert data["no_code"]["cu118"] == data["no_code"]["cu126"] == ["10.0", "10.3", "11.0", "12.0", "12.1"]
    assert data["no_code"]["cu128"] == ["11.0"]
    assert data["driver_of"]["cu118"] == "12.0" and data["driver_of"]["cu126"] == "12.6"
    first = {gpu["capability"]: gpu["driver"] for gpu in data["gpus"]}
    assert (first["9.0"], first["12.0"], first["10.3"]) == ("12.0", "12.8", "12.9")


def test_a_page_away_from_the_index_offers_what_is_planned() -> None:
    data = selector.planned(KNOWN, "1.0", "$INDEX")
    assert data["base"] == "$INDEX" and data["cpu"] == ["x86_64", "aarch64"]
    assert set(data["labels"]) >= {*CUDA, "cpu"}
    every = [answer for machine in data["choice"].values() for gpus in machine.values() for answer in gpus.values()]
    assert len(every) == 2 * len(data["drivers"]) * len(selector.GPUS) and all(label in CUDA for label, _ in every)
