"""What a wheelhouse must be for the index to take it: each file that does not belong there is refused by its name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.wheels import make_sdist, make_wheel
from tools.shared import dists, wheelhouse

from .test_index import content, files, house, run

__all__ = ["house"]  # a fixture


def no_metadata(folder: Path) -> Path:
    return make_wheel(folder, version="1.0+cu130", metadata="Name: precast\nVersion: 1.0+cu121\n")


def text_file(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("no archive")
        return folder / name

    return make


def twice(folder: Path) -> Path:
    make_wheel(folder / "a", version="1.0+cu130")
    return make_wheel(folder / "b", version="1.0+cu130")


def for_one_machine_twice(folder: Path) -> Path:
    make_wheel(folder, version="1.0+cu130")
    return make_wheel(
        folder, version="1.0+cu130", tag="py3-none-manylinux_2_24_x86_64.manylinux_2_28_x86_64", python=">=3.11"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: make_wheel(folder, version="1.1+cu130"), "version 1.1, and this release is 1.0"),
        (lambda folder: make_wheel(folder, version="1.0rc1"), "version 1.0rc1, and this release is 1.0"),
        (lambda folder: make_wheel(folder, name="torch"), "a distribution of torch; this index serves precast alone"),
        (lambda folder: make_sdist(folder, name="torch"), "a distribution of torch"),
        (lambda folder: make_wheel(folder, version="1.0+cu125"), "matrix.toml has no label 'cu125'; it has: cu121"),
        (
            lambda folder: make_wheel(folder, tag="py3-none-linux_x86_64"),
            "fix     1) python -m tools repair --out wheelhouse",
        ),
        (lambda folder: make_wheel(folder, tag="py3-none-win_amd64"), "not a platform tag: 'win_amd64'"),
        (no_metadata, "its metadata says precast 1.0+cu121, its name precast 1.0+cu130"),
        (lambda folder: make_wheel(folder, python="3.10 or so"), "Requires-Python: Invalid specifier"),
        (lambda folder: make_wheel(folder, python=">=3.10é"), "Requires-Python: Invalid specifier"),
        (lambda folder: make_wheel(folder, metadata="Name: précast\nVersion: 1.0\n"), "its metadata says précast 1.0"),
        (lambda folder: make_sdist(folder, metadata="Name: précast\nVersion: 1.0\n"), "its metadata says précast 1.0"),
        (lambda folder: make_sdist(folder, metadata="Name: precast\nVersion: 2.0\n"), "its metadata says precast 2.0"),
        (text_file("notes.txt"), "not a wheel"),
        (text_file("precast-1.0+cu130-py3-none-manylinux_2_28_x86_64.whl"), "not a wheel"),
        (text_file("precast-1.0-manylinux_2_28_x86_64.whl"), "not a wheel"),
        (text_file("precast-1.0.tar.gz"), "not an sdist"),
        (twice, "is 1.0+cu130 for x86_64 already"),
        (for_one_machine_twice, "precast-1.0+cu130-"),
    ],
)
def test_what_does_not_belong_there_is_refused_by_name(
    make: Callable[[Path], Path], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path / "house")
    assert run(tmp_path / "house", "--out", tmp_path / "site") == 1
    said = capsys.readouterr().err
    assert message in said and path.name in said
    assert not (tmp_path / "site").exists()


def test_a_wheel_without_metadata_is_none(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    renamed = path.rename(tmp_path / path.name.replace("1.0", "2.0"))
    with pytest.raises(dists.IndexRefused, match=r"no precast-2\.0\.dist-info/METADATA"):
        dists.read_dist(renamed)


def test_an_empty_wheelhouse_and_a_folder_that_is_no_index_are_refused(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nowhere", "--out", tmp_path / "site") == 1
    assert "nowhere: no wheels here" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep")
    assert run(house, "--out", tmp_path / "mine") == 1
    assert "mine: not an index" in capsys.readouterr().err
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep"


def recorded(house: Path) -> None:
    """The records that `tools build` leaves beside its wheels."""
    for number, path in enumerate(sorted(house.iterdir())):
        data = path.read_bytes()
        wheelhouse.put(house, f"cell-{number}", "0" * 64, shutil.move(path, house.parent / path.name), 0.0)
        assert path.read_bytes() == data


def test_what_was_recorded_is_indexed(house: Path, tmp_path: Path) -> None:
    run(house, "--out", tmp_path / "plain")
    recorded(house)
    assert run(house, "--out", tmp_path / "site") == 0
    assert content(tmp_path / "site") == content(tmp_path / "plain")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda house: make_wheel(house, version="1.0+cu130", python=">=3.11"), "its record says"),
        (lambda house: make_wheel(house, version="1.0+cpu"), "its record says nothing"),
        (lambda house: next(house.glob("*cu130*")).unlink(), "not there, though its record is"),
        (lambda house: (house / "notes.json").write_text("{}"), "notes.json is not a record of a finished wheel"),
    ],
)
def test_a_wheelhouse_that_its_records_do_not_describe_is_refused(
    change: Callable[[Path], object], message: str, house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(house)
    change(house)
    assert run(house, "--out", tmp_path / "site") == 1
    assert message in capsys.readouterr().err


def test_a_trial_is_written_anew_and_a_stranger_is_not(
    house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    run(house, "--out", site)
    make_wheel(house, version="1.0+cu130", files={"precast/new.py": b""})
    (house / "precast-1.0+cu121-py3-none-manylinux_2_28_aarch64.whl").unlink()
    assert run(house, "--out", site, "--fresh") == 0
    assert len(files(site / "cu121/precast/index.json")) == 1
    (tmp_path / "mine").write_text("keep")
    assert run(house, "--out", tmp_path / "mine", "--fresh") == 1
    assert "mine: not an index" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(house, "--out", tmp_path / "empty") == 0
    assert content(tmp_path / "empty") == content(site)
