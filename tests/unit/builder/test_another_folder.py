"""Another folder for builds is offered only if builds can be kept there."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._builder import trust


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The room that every file system has, which a test may change."""
    found = SimpleNamespace(f_bavail=trust.ENOUGH_BYTES // 1000, f_frsize=1000, f_flag=os.ST_NOSUID)
    monkeypatch.setattr(os, "statvfs", lambda place: found)
    return found


def test_a_folder_serves_that_is_safe_and_has_just_enough_room(tmp_path: Path, room: SimpleNamespace) -> None:
    tmp_path.chmod(0o700)
    assert trust._serves(tmp_path / "new" / "cache", tmp_path / "taken")
    room.f_flag |= os.ST_NOEXEC
    assert not trust._serves(tmp_path / "new" / "cache", tmp_path / "taken"), "the linker could not load from it"
    room.f_flag, room.f_bavail = 0, room.f_bavail - 1
    assert not trust._serves(tmp_path / "new" / "cache", tmp_path / "taken")


def test_what_is_taken_and_what_overlaps_it_does_not_serve(tmp_path: Path, room: SimpleNamespace) -> None:
    tmp_path.chmod(0o700)
    taken = tmp_path / "a" / "b"
    for place in (taken, taken / "c", taken.parent, Path("relative")):
        assert not trust._serves(place, taken)
    assert trust._serves(tmp_path / "a" / "c", taken)


def test_a_place_that_cannot_be_asked_for_its_room_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: Path) -> None:
        raise OSError("gone")

    monkeypatch.setattr(os, "statvfs", fail)
    assert not trust._serves(tmp_path / "cache", tmp_path / "taken")


def test_a_file_in_the_way_does_not_serve(tmp_path: Path, room: SimpleNamespace) -> None:
    (tmp_path / "file").touch(mode=0o700)
    assert not trust._serves(tmp_path / "file", tmp_path / "taken")
