"""Odd files are named without being waited for or read, and private ones are private whatever the umask says."""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.core import files
from tests.kit import odd

READERS: list[Callable[[Path, int], object]] = [files.read, files.digest]


@pytest.mark.parametrize("reader", READERS)
def test_a_plain_file_is_read_to_its_limit_and_no_further(
    tmp_path: Path, reader: Callable[[Path, int], object]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    wanted = b"content" if reader is files.read else (7, hashlib.sha256(b"content").hexdigest())
    assert reader(path, 7) == wanted
    with pytest.raises(files.WrongSize, match="7 bytes, more than 6") as caught:
        reader(path, 6)
    assert caught.value.size == 7
    path.write_bytes(b"")
    assert reader(path, 0) == (b"" if reader is files.read else (0, hashlib.sha256().hexdigest()))
    (tmp_path / "link").symlink_to(path)
    assert reader(tmp_path / "link", 7) == reader(path, 7), "a package may consist of links"
    with pytest.raises(FileNotFoundError):
        reader(tmp_path / "nothing", 7)


def test_a_large_file_is_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 3)
    (tmp_path / "file").write_bytes(b"1234567")
    assert files.digest(tmp_path / "file", 7) == (7, hashlib.sha256(b"1234567").hexdigest())


SAID = {
    "fifo": "a FIFO, not a regular file",
    "device": "a device, not a regular file",
    "listening": "a socket, not a regular file",
    "folder": "a folder, not a regular file",
    "sparse": f"{odd.HUGE} bytes, more than 10",
    "circle": "a link, not a regular file",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", odd.ODD)
def test_an_odd_file_is_named_at_once(tmp_path: Path, kind: str, reader: Callable[[Path, int], object]) -> None:
    odd.put(kind, tmp_path / "odd")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with odd.no_hang(), pytest.raises(files.OddFile) as caught:
        reader(tmp_path / "odd", 10)
    assert caught.value.strerror == SAID[kind] and caught.value.filename == str(tmp_path / "odd")
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "a descriptor is left open"


def test_a_link_can_be_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(files.OddFile, match="a link, not a regular file"):
        files.read(tmp_path / "link", 10, links=False)


def test_the_open_file_is_judged_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with pytest.raises(files.OddFile, match="not one of ours"):
        files.read(path, 10, judge=lambda facts: "not one of ours" if facts.st_size == 7 else None)
    assert files.read(path, 10, judge=lambda facts: None) == b"content"


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_what_is_made_is_private(tmp_path: Path, umask: int) -> None:
    (tmp_path / "made").write_bytes(b"by a compiler")
    (tmp_path / "made").chmod(0o777)
    before = os.umask(umask)
    try:
        files.write_private(tmp_path / "new", b"one")
        files.write_private(tmp_path / "new", b"two")
        files.make_private(tmp_path / "made")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"two"
    assert {path.name: path.stat().st_mode & 0o7777 for path in tmp_path.iterdir()} == {"new": 0o600, "made": 0o600}


def test_a_file_that_is_mapped_keeps_its_bytes_when_another_takes_its_name(tmp_path: Path) -> None:
    files.write_private(tmp_path / "file", b"one")
    with (tmp_path / "file").open("rb") as mapped:
        files.write_private(tmp_path / "file", b"2")
        assert mapped.read() == b"one"


def test_a_write_that_fails_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    files.write_private(tmp_path / "file", b"one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.write_private(tmp_path / "file", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
