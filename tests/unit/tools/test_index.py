"""The index: what its pages say, what it carries over, and each thing that it refuses, by the name of the file."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.kit.wheels import make_sdist, make_wheel
from tools import __main__ as tools_main
from tools.verbs import index

ARM = "py3-none-manylinux_2_28_aarch64"


class Anchors(HTMLParser):
    """The links of a page, with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append({name: value or "" for name, value in attrs})
            self._open = True

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[-1]["text"] = data
            self._open = False


def anchors(page: Path) -> list[dict[str, str]]:
    return Anchors(page.read_text()).found


def files(page: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(page.read_text())["files"]
    return entries


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A wheelhouse of 1.0: two labels on one machine, one of them on both, the wheel without a label, an sdist."""
    folder = tmp_path / "house"
    make_wheel(folder)
    make_sdist(folder)
    for version, tag in (("1.0+cu121", ARM), ("1.0+cu121", None), ("1.0+cu130", None)):
        make_wheel(folder, version=version, **({} if tag is None else {"tag": tag}))
    return folder


def run(*words: object, version: str = "1.0") -> int:
    return tools_main.main(["index", *map(str, words), "--version", version])


def content(site: Path) -> dict[str, bytes]:
    return {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def test_the_root_has_no_labels_and_each_label_has_a_folder(house: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert run(house, "--out", site) == 0
    assert [a["text"] for a in anchors(site / "precast/index.html")] == [
        "precast-1.0-py3-none-manylinux_2_28_x86_64.whl",
        "precast-1.0.tar.gz",
    ]
    assert [a["text"] for a in anchors(site / "cu121/precast/index.html")] == [
        "precast-1.0+cu121-py3-none-manylinux_2_28_aarch64.whl",
        "precast-1.0+cu121-py3-none-manylinux_2_28_x86_64.whl",
    ]
    assert len(anchors(site / "cu130/precast/index.html")) == 1
    assert not (site / "cu124").exists() and not (site / "cpu").exists()
    for root in (site, site / "cu121"):
        assert anchors(root / "index.html") == [{"href": "precast/", "text": "precast"}]
        assert json.loads((root / "index.json").read_text())["projects"] == [{"name": "precast"}]


def test_every_link_has_its_hash_its_python_and_its_metadata(house: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(house, "--out", site)
    for page in site.glob("**/precast/index.html"):
        entries = {entry["filename"]: entry for entry in files(page.with_suffix(".json"))}
        assert [a["text"] for a in anchors(page)] == list(entries)
        for link in anchors(page):
            file, entry = page.parent / link["text"], entries[link["text"]]
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            assert link["href"] == f"{link['text'].replace('+', '%2B')}#sha256={digest}"
            assert (entry["url"], entry["hashes"]) == (link["href"].partition("#")[0], {"sha256": digest})
            assert entry["size"] == file.stat().st_size
            assert link["data-requires-python"] == entry["requires-python"] == ">=3.10"
            metadata = file.with_name(f"{file.name}.metadata")
            if file.suffix == ".whl":
                said = hashlib.sha256(metadata.read_bytes()).hexdigest()
                assert metadata.read_bytes().startswith(b"Metadata-Version")
                assert link["data-core-metadata"] == link["data-dist-info-metadata"] == f"sha256={said}"
                assert entry["core-metadata"] == entry["dist-info-metadata"] == {"sha256": said}
            else:
                assert not metadata.exists() and "core-metadata" not in entry and "data-core-metadata" not in link
            assert "yanked" not in entry and "data-yanked" not in link


def test_the_same_files_give_the_same_site(house: Path, tmp_path: Path) -> None:
    run(house, "--out", tmp_path / "a")
    moved = tmp_path / "elsewhere" / "deep"
    moved.mkdir(parents=True)
    for path in sorted(house.iterdir(), reverse=True):
        folder = moved / path.name.partition("-")[2][:9]  # as jobs hand their wheels over: a folder for each
        folder.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / path.name)
    run(moved, "--out", tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert run(house, "--out", tmp_path / "a") == 0, "what is there already is taken again"
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_later_release_keeps_what_was_published(house: Path, tmp_path: Path) -> None:
    run(house, "--out", tmp_path / "old")
    make_wheel(tmp_path / "new", version="1.1rc1+cu121")
    make_wheel(tmp_path / "new", version="1.1rc1")
    assert run(tmp_path / "new", "--out", tmp_path / "site", "--previous", tmp_path / "old", version="1.1rc1") == 0
    document = json.loads((tmp_path / "site/cu121/precast/index.json").read_text())
    assert document["versions"] == ["1.0+cu121", "1.1rc1+cu121"] and len(document["files"]) == 3
    kept, now = content(tmp_path / "old"), content(tmp_path / "site")
    assert all(now[name] == data for name, data in kept.items() if name.endswith((".whl", ".gz", ".metadata")))
    assert json.loads(now["selector.json"])["version"] == "1.0", "a candidate is not what people are sent to"


def grow(change: Callable[[Path], object], site: Path, house: Path, out: Path) -> int:
    """Publish, change something of it, publish again."""
    assert run(house, "--out", site) == 0
    change(site)
    return run(house, "--out", out, "--previous", site)


def edit_json(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    def apply(site: Path) -> None:
        document = json.loads((site / name).read_text())
        change(document["files"])
        (site / name).write_text(json.dumps(document))

    return apply


def edit(page: Path, old: str, new: str) -> None:
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))


WHEEL = "cu130/precast/precast-1.0+cu130-py3-none-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda site: (site / WHEEL).write_bytes(b"PK"), f"{WHEEL}: changed after publication"),
        (lambda site: (site / WHEEL).unlink(), f"{WHEEL}: removed after publication"),
        (edit_json("cu130/precast/index.json", list.clear), f"{WHEEL}: it lies in the index, and no page lists it"),
        (
            lambda site: (site / "cu130/precast/index.json").unlink(),
            "cu130/precast/index.json: removed after publication",
        ),
        (lambda site: (site / "precast/index.json").unlink(), "1.0-py3-none-manylinux_2_28_x86_64.whl: it lies in"),
        (
            edit_json("cu130/precast/index.json", lambda entries: entries[0]["hashes"].update(sha256="0" * 64)),
            f"{WHEEL}: changed after publication",
        ),
        (
            edit_json("cu130/precast/index.json", lambda entries: entries[0].pop("hashes")),
            "cu130/precast/index.json: not a page of an index",
        ),
        (lambda site: shutil.rmtree(site / "cu130"), "cu130/precast/index.json: removed after publication"),
        (
            lambda site: edit(site / "cu130/precast/index.html", "sha256=", "sha256=0"),
            f"cu130/precast/index.html: the entry of {Path(WHEEL).name} was changed after publication",
        ),
        (
            lambda site: edit(site / "cu130/precast/index.html", "%2Bcu130", "%2Bcu129"),
            "index.html: the entry of precast-1.0+cu129-py3-none-manylinux_2_28_x86_64.whl was changed",
        ),
        (
            lambda site: edit(site / "cu130/precast/index.html", "<a href", "<b href"),
            f"index.html: the entry of {Path(WHEEL).name} was changed",
        ),
        (
            lambda site: edit(
                site / "cu130/precast/index.html", "<a href", '<a href="new.whl#sha256=0">new</a><a href'
            ),
            "index.html: the entry of new.whl was changed",
        ),
        (lambda site: (site / "precast/index.json").write_text("{"), "precast/index.json: not a page of an index"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_what_was_published_must_still_be_there(
    change: Callable[[Path], object],
    message: str,
    house: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = grow(change, tmp_path / "site", house, tmp_path / "next")
    assert status == 1 and message in capsys.readouterr().err
    assert not (tmp_path / "next").exists(), "nothing is written when something is refused"


def test_other_bytes_under_a_published_name_are_refused(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    run(house, "--out", site)
    before = content(site)
    changed = make_wheel(house, version="1.0+cu130", files={"precast/new.py": b""})
    assert run(house, "--out", site) == 1
    assert f"{changed}: changed after publication: {site / WHEEL} has" in capsys.readouterr().err
    assert content(site) == before


def yanks(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["[yanked]", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("key", "hit"),
    [("1.0", 5), ("1.0+cu121", 2), ("precast-1.0+cu121-py3-none-manylinux_2_28_x86_64.whl", 1)],
)
def test_a_yank_is_on_the_pages_with_its_reason(house: Path, tmp_path: Path, key: str, hit: int) -> None:
    reason = 'wrong "eps" <fixed in 1.0.post1>'
    listed = yanks(tmp_path / "yanked.toml", f"\"{key}\" = '{reason}'")
    assert run(house, "--out", tmp_path / "site", "--yanked", listed) == 0
    links = [a for page in tmp_path.glob("site/**/precast/index.html") for a in anchors(page)]
    entries = [e for page in tmp_path.glob("site/**/precast/index.json") for e in files(page)]
    assert [a["data-yanked"] for a in links if "data-yanked" in a] == [reason] * hit
    assert [e["yanked"] for e in entries if "yanked" in e] == [reason] * hit


def test_a_yank_names_something_and_stays(house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = tmp_path / "yanked.toml"
    for line, message in (
        ('"1.1" = "broken"', "yanked.toml: 1.1: no such version or file"),
        ('"1.0" = " "', "yanked.toml: 1.0: the reason is empty"),
        ('"1.0" = 1', "yanked.toml: yanked.toml.yanked.1.0: needed str, found 1"),
        ('"1.0"', "yanked.toml: "),
    ):
        assert run(house, "--out", tmp_path / "site", "--yanked", yanks(listed, line)) == 1
        assert message in capsys.readouterr().err
    listed.write_bytes(b"\xff")
    assert run(house, "--out", tmp_path / "site", "--yanked", listed) == 1
    assert "yanked.toml: 'utf-8' codec can't decode" in capsys.readouterr().err
    yanks(listed, '"1.0+cu130" = "broken"')
    assert run(house, "--out", tmp_path / "site", "--yanked", listed) == 0
    assert run(house, "--out", tmp_path / "site") == 1
    assert f"{Path(WHEEL).name}: it was yanked, and " in capsys.readouterr().err


def test_the_kept_list_of_yanks_can_be_read(checkout: Path) -> None:
    from tools.shared.published import read_yanks

    assert read_yanks(checkout / "yanked.toml", [], []) == {}


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt("no space left")])
def test_a_site_that_cannot_be_put_in_place_leaves_the_old_one(
    error: BaseException, house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    run(house, "--out", site)
    before = content(site)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name == "site" and self != site:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(type(error), match="no space left"):
        index.main([str(house), "--out", str(site), "--version", "1.0"])
    assert content(site) == before and sorted(path.name for path in tmp_path.iterdir()) == ["house", "site"]
