"""What the tests fetch appears whole or not at all, however many runs of them fetch it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from precast._builder import nvrtc
from precast.core.host import Nvrtc
from tests.kit import fetched

LABEL = "cu130"


@pytest.fixture(autouse=True)
def _where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NVRTC is a file that names itself, and this environment has none."""

    def find(_: None, __: None, version: str, *, site_dirs: Iterable[Path]) -> tuple[Nvrtc | None, tuple[str, ...]]:
        found = [place / "nvrtc" for place in site_dirs if (place / "nvrtc").is_file()]
        return (Nvrtc(found[0].read_text(), None, version, (), "package") if found else None), ("nothing",)

    monkeypatch.setattr(nvrtc, "find_nvrtc", find)


def leave(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "nvrtc").write_text(text)


@pytest.mark.parametrize("there", [False, True])
def test_it_is_fetched_once(tmp_path: Path, there: bool) -> None:
    site, asked = tmp_path / "kept" / "site", list[str]()
    if there:  # as pytest makes it: empty
        site.mkdir(parents=True)

    def install(wanted: str, folder: Path) -> None:
        asked.append(wanted)
        leave(folder, "ours")

    assert [fetched.label_nvrtc(LABEL, site, install).path for _ in range(2)] == ["ours", "ours"]
    assert asked == [fetched.LABELS[LABEL].requirement]


def test_what_another_run_has_fetched_meanwhile_is_kept(tmp_path: Path) -> None:
    site = tmp_path / "site"

    def install(_: str, folder: Path) -> None:
        leave(site, "theirs")
        leave(folder, "ours")

    assert fetched.label_nvrtc(LABEL, site, install).path == "theirs"
    assert list(tmp_path.iterdir()) == [site]


def test_half_of_it_is_never_there(tmp_path: Path) -> None:
    site = tmp_path / "site"

    def install(_: str, folder: Path) -> None:
        leave(folder, "half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched.label_nvrtc(LABEL, site, install)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_it_cannot_be_is_an_error(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.touch()
    with pytest.raises(NotADirectoryError):
        fetched.label_nvrtc(LABEL, site, lambda _, folder: leave(folder, "ours"))
