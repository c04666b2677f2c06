"""The one form of a wheel: it follows from the files and one moment alone."""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path

import pytest

from precast._builder.wheel_file import moment_of, write_wheel
from precast.errors import KernelError
from tools.guards.archive import differences
from tools.shared.wheel import Entry, expected_entries, read_wheel, record_errors
from tools.verbs.repair import epoch_of

INFO = "a-1.dist-info"
NAME = "a-1-py3-none-any.whl"
FILES = {
    "a/__init__.py": b"",
    "b.py": b"print()\n",
    f"{INFO}/METADATA": b"Name: a\n",
    f"{INFO}/WHEEL": b"",
    "z, y.txt": b"x",
}
EPOCH = 1_700_000_001


def test_order_umask_and_zone_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number, zone in enumerate(("UTC", "Pacific/Kiritimati")):
        names = list(FILES)
        random.Random(number).shuffle(names)
        monkeypatch.setenv("TZ", zone)
        folder = tmp_path / f"{number}"
        folder.mkdir()
        before = os.umask(0o022 if number else 0o077)
        try:
            write_wheel(folder / NAME, INFO, {name: FILES[name] for name in names}, EPOCH)
        finally:
            os.umask(before)
        made.append(folder / NAME)
    assert made[0].read_bytes() == made[1].read_bytes()
    assert [path.stat().st_mode & 0o777 for path in made] == [0o644, 0o644]


def test_the_written_form_is_the_expected_one(tmp_path: Path) -> None:
    write_wheel(tmp_path / NAME, INFO, FILES, EPOCH)
    wheel = read_wheel(tmp_path / NAME)
    assert wheel.entries == expected_entries(wheel) and wheel.entries[-1].name == f"{INFO}/RECORD"
    assert list(record_errors(wheel)) == []
    assert wheel.entries[0].moment == (2023, 11, 14, 22, 13, 20), "a zip archive knows even seconds only"
    assert moment_of(0).year == 1980


@pytest.mark.parametrize("field", ["moment", "system", "attributes", "compression", "extra"])
def test_every_part_of_an_entry_belongs_to_the_form(tmp_path: Path, field: str) -> None:
    write_wheel(tmp_path / NAME, INFO, FILES, EPOCH)
    other = {
        "moment": ("date_time", (2024, 1, 1, 0, 0, 0)),
        "system": ("create_system", 0),
        "attributes": ("external_attr", 0o100600 << 16),
        "compression": ("compress_type", zipfile.ZIP_STORED),
        "extra": ("extra", b"\x99\x99\x04\x00mine"),
    }
    with zipfile.ZipFile(tmp_path / NAME) as archive:
        content = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        for number, (entry, data) in enumerate(content):
            if number == 2:
                setattr(entry, *other[field])
            archive.writestr(entry, data, entry.compress_type)
    wheel = read_wheel(tmp_path / NAME)
    wrong = [
        entry.name for entry, wanted in zip(wheel.entries, expected_entries(wheel), strict=True) if entry != wanted
    ]
    assert wrong == [content[2][0].filename] and field in Entry.__slots__


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_wheel(tmp_path / NAME, INFO, {**FILES, "c.py": None}, EPOCH)  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_two_builds_that_differ_are_told_apart_by_file_and_byte(tmp_path: Path) -> None:
    for folder, extra in (("one", {}), ("two", {"b.py": b"print(1)\n", "c.py": b""})):
        (tmp_path / folder).mkdir()
        write_wheel(tmp_path / folder / NAME, INFO, {**FILES, **extra}, EPOCH)
    found = {v.candidate: v.found for v in differences(tmp_path / "one" / NAME, tmp_path / "two" / NAME)}
    assert "from byte 6 on" in found["b.py"] and found["c.py"].startswith("in ") and f"{INFO}/RECORD" in found
    assert list(differences(tmp_path / "one" / NAME, tmp_path / "one" / NAME)) == []


def test_the_moment_is_said_known_or_asked_for(tmp_path: Path) -> None:
    assert epoch_of(tmp_path, {"SOURCE_DATE_EPOCH": "5"}) == 5
    with pytest.raises(KernelError, match="SOURCE_DATE_EPOCH cannot be read"):
        epoch_of(tmp_path, {"SOURCE_DATE_EPOCH": "9" * 5000})
    assert moment_of(10**17).year == 2107, "the last that a zip archive can hold"
    with pytest.raises(KernelError, match=r"SOURCE_DATE_EPOCH cannot be read\n  found   'noon'"):
        epoch_of(tmp_path, {"SOURCE_DATE_EPOCH": "noon"})
    with pytest.raises(KernelError, match=r"export SOURCE_DATE_EPOCH=\$\(date"):
        epoch_of(tmp_path, {})
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (9, 6))
    assert epoch_of(tmp_path, {}) == 6, "an unpacked archive bears the time of its commit"
    (tmp_path / "source.json").write_text('{"commit": "abc1234", "dirty": false, "epoch": 7}')
    assert epoch_of(tmp_path, {}) == 7
