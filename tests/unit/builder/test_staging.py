"""Outputs are made next to their places and moved together: whatever fails before that leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder import staging
from precast.errors import KernelError


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_moved_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with staging.staged(tmp_path) as staged:
        for name in ("a", "deep/er/b"):
            staged.path(name).write_bytes(b"new")
        assert (tmp_path / "a").read_bytes() == b"old" and not (tmp_path / "deep").exists()
        assert staged.place() == [tmp_path / "a", tmp_path / "deep/er/b"]
    assert tree(tmp_path) == {"a": b"new", "deep/er/b": b"new"}


def test_a_step_that_fails_undoes_those_before(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "wall").write_bytes(b"a file")

    def fail() -> None:
        with staging.staged(tmp_path) as staged:
            for name in ("a", "deep/b", "wall/c"):
                staged.path(name).write_bytes(b"new")
            staged.place()

    with pytest.raises(KernelError, match=r"nothing was written to .*\n  found   .*wall"):
        fail()
    assert tree(tmp_path) == {"a": b"old", "wall": b"a file"} and len(list(tmp_path.iterdir())) == 2


ENDS = (ValueError("no"), KeyboardInterrupt(), SystemExit(143), OSError(28, "No space left"))


@pytest.mark.parametrize("end", ENDS)
def test_nothing_stays_of_what_was_not_placed(end: BaseException, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"

    def half() -> None:
        with staging.staged(out) as staged:
            staged.path("a").write_bytes(b"half")
            raise end

    with pytest.raises(KernelError if isinstance(end, OSError) else type(end)):
        half()
    with staging.staged(out) as staged:
        staged.path("a").write_bytes(b"refused")
    assert list(tmp_path.iterdir()) == []


SAME: dict[str, Callable[[Path, Path], object]] = {
    "itself": lambda one, other: one.rename(other),
    "a hard link": lambda one, other: other.hardlink_to(one),
    "a link": lambda one, other: other.symlink_to(one),
}


@pytest.mark.parametrize("how", SAME)
def test_no_output_goes_onto_an_input(how: str, tmp_path: Path) -> None:
    one, out = tmp_path / "given.whl", tmp_path / "out"
    out.mkdir()
    one.write_bytes(b"mine")
    SAME[how](one, out / "x.whl")
    given = one if one.exists() else tmp_path / "out" / ".." / "out" / "x.whl"
    with pytest.raises(KernelError, match="an output would replace its input"), staging.staged(out, [given]) as staged:
        staged.path("x.whl")
    assert given.read_bytes() == b"mine" and [path.name for path in out.iterdir()] == ["x.whl"]


@pytest.mark.parametrize("place", ["file", "file/below", "dangling"])
def test_what_is_no_folder_is_one_sentence(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KernelError, match="nothing was written to"), staging.staged(tmp_path / place):
        pass
