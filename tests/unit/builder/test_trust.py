"""Folders that somebody else could have put something into are not loaded from."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precast._builder import cache_tools, failure, headers, process, trust
from precast._builder.cache import BuildKey, Cache
from precast.core import owned
from precast.errors import KernelError

KEY = BuildKey("family", {"schema": 1})


def build(staging: Path) -> Path:
    (staging / "out.so").write_text("payload")
    return staging / "out.so"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """The mode of everything below a folder, and its own, by the kind of thing."""
    found = {"folder": set(), "file": set()}
    for path in (root, *root.rglob("*")):
        found["folder" if path.is_dir() else "file"].add(path.stat().st_mode & 0o7777)
    (folders,), (files,) = found["folder"], found["file"]
    return {"folder": folders, "file": files}


PRIVATE = {"folder": 0o700, "file": 0o600}


def run_compiler(staging: Path) -> Path:
    """As a compiler does it: a child makes the payload and a log, with all modes that the umask leaves."""
    command = [sys.executable, "-c", "import os; os.mkdir('work'); os.open('out.so', os.O_CREAT | os.O_WRONLY, 0o777)"]
    status, log = process.run(["env", "-C", str(staging), *command], log=staging / "build.log", environment=os.environ)
    assert status == 0, log
    assert (staging / "out.so").stat().st_mode & 0o077 == 0, "private from the start"
    return staging / "out.so"


@pytest.mark.parametrize("mask", [0, 0o002, 0o077, 0o377])
def test_what_is_made_is_for_its_owner_alone_whatever_the_umask_says(
    tmp_path: Path, mask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with umask(mask & 0o077):
        root = tmp_path / "a" / "cache"
        cache = Cache(root)
        made = cache.obtain(KEY, run_compiler)
        (tmp_path / "loose.o").write_bytes(b"object")
        (tmp_path / "loose.o").chmod(0o777)
        cache.store(BuildKey("objects", {"schema": 1}), tmp_path / "loose.o", 1.0)
        failure.build_failed("x", "error: y", "cc", cache.failure_log(KEY), tool="cc")
        made.path.write_bytes(b"another")
        assert not cache.obtain(KEY, run_compiler).cached, "the damaged one is moved aside"
        headers.write(root / "headers" / "0123", {"include/torch/a.h": b"//"})
        monkeypatch.setattr(Path, "rename", refuse_to_rename)
        cache.store(BuildKey("copied", {"schema": 1}), tmp_path / "loose.o", 1.0)
        removals = [cache_tools.Removal(cache.entry(BuildKey("objects", {"schema": 1})), 1, "")]
        monkeypatch.undo()
        cache_tools.remove(root, removals)
    names = {path.relative_to(root).parts[1] for path in root.glob("*/*")}
    assert {".damaged", ".failed", ".staging", "family", "copied", "0123"} <= names
    assert modes(root) == PRIVATE


def refuse_to_rename(self: Path, target: Path) -> Path:
    raise OSError(18, "Invalid cross-device link", str(target))


def test_what_this_process_keeps_for_itself_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "_show", lambda *_: refuse_to_rename(tmp_path, tmp_path))
    with umask(0):
        made = Cache(tmp_path / "cache").obtain(KEY, build)
    assert modes(made.path.parents[1]) == PRIVATE
    with made.path.open("rb") as mapped:
        assert Cache(tmp_path / "cache").obtain(KEY, build).path == made.path
        assert mapped.read() == b"payload", "a library that is mapped is not written to"


def test_a_private_folder_that_cannot_be_made_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelError, match=r"\n  found   \S+/file/below: Not a directory\n"):
        trust.private_folder(tmp_path / "file" / "below")

    def fail(path: Path, mode: int) -> None:
        raise OSError("out of folders")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(KernelError, match=r"\n  found   \S+/below: out of folders\n"):
        trust.private_folder(tmp_path / "below")


@pytest.mark.parametrize("name", ["out.so", "meta.json"])
@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666, 0o775])
def test_a_file_that_others_can_write_is_not_used_and_is_built_again(
    tmp_path: Path, name: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "cache")
    entry = cache.obtain(KEY, build).path.parent
    (entry / name).chmod(mode)
    assert cache.lookup(KEY) is None
    found = cache_tools.read_entry(entry)
    assert f"{name}: others can write it" in str(found.problem), "what is listed agrees with what is loaded"
    again = cache.obtain(KEY, build)
    assert not again.cached and f"{name}: others can write it (mode {stat.filemode(0o100000 | mode)})" in caplog.text
    assert cache.obtain(KEY, build).cached and modes(entry) == PRIVATE


@pytest.mark.parametrize("name", ["out.so", "meta.json"])
def test_a_file_of_another_user_is_not_used(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    entry = cache.obtain(KEY, build).path.parent
    inode, fstat = (entry / name).stat().st_ino, os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        facts = list(fstat(descriptor))
        if facts[1] == inode:
            facts[4] = 4711
        return os.stat_result(facts)

    monkeypatch.setattr(os, "fstat", of_another)
    assert cache.lookup(KEY) is None
    assert f"{name}: it belongs to user 4711" in str(cache_tools.read_entry(entry).problem)


def test_a_link_in_place_of_a_file_is_not_used_in_ones_own_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    path = cache.obtain(KEY, build).path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.lookup(KEY) is None
    assert "a link, not a regular file" in str(cache_tools.read_entry(path.parent).problem)


@pytest.mark.parametrize("linked", [False, True])
def test_the_read_only_cache_of_an_administrator_is_used_as_it_is(tmp_path: Path, linked: bool) -> None:
    path = Cache(tmp_path / "site").obtain(KEY, build).path
    if linked:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path / "site").rglob("*"):
        place.chmod(0o755 if place.is_dir() else 0o644)
    (tmp_path / "site").chmod(0o755)
    assert Cache(tmp_path / "own", search=(tmp_path / "site",)).lookup(KEY) == path
    assert Cache(tmp_path / "site").lookup(KEY) == (None if linked else path), "and the one who fills it uses it too"


@pytest.mark.parametrize("below", ["v1", "v1/family"])
def test_a_folder_on_the_way_to_an_entry_that_others_can_write_is_refused(tmp_path: Path, below: str) -> None:
    Cache(tmp_path / "cache").obtain(KEY, build)
    (tmp_path / "cache" / below).chmod(0o770)
    with pytest.raises(KernelError, match=f"{below}: others can write it"):
        Cache(tmp_path / "cache").lookup(KEY)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_cache_that_others_can_write_is_refused_with_nothing_written(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(KernelError, match="others can write it") as caught:
        Cache(root).obtain(KEY, build)
    assert f"chmod go-w {root}" in str(caught.value) and list(root.iterdir()) == []


def test_a_warm_cache_that_others_can_write_is_refused_before_its_file_is_used(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    Cache(root).obtain(KEY, build)
    root.chmod(0o777)
    with pytest.raises(KernelError, match="not safe to load libraries from"):
        Cache(root).lookup(KEY)


def test_an_entry_that_others_can_write_is_refused(tmp_path: Path) -> None:
    Cache(tmp_path / "cache").obtain(KEY, build).path.parent.chmod(0o777)
    with pytest.raises(KernelError, match="others can write it"):
        Cache(tmp_path / "cache").lookup(KEY)


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(KernelError, match=f"belongs to user {uid}"):
        Cache(root).obtain(KEY, build)


def test_a_parent_in_which_everybody_can_rename_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(KernelError, match="everybody can exchange what is in it"):
        Cache(tmp_path / "open" / "cache").obtain(KEY, build)
    (tmp_path / "open").chmod(0o1777)
    assert not Cache(tmp_path / "open" / "cache").obtain(KEY, build).cached, "sticky, as /tmp is"


def test_a_link_that_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert owned.why_not(tmp_path / "link" / "cache", owner=os.getuid()) is None, "one's own link is one's own business"
    lstat = Path.lstat

    def of_another(self: Path) -> os.stat_result:
        facts = list(lstat(self))
        if self.name == "link":
            facts[4] = 4711
        return os.stat_result(facts)

    monkeypatch.setattr(Path, "lstat", of_another)
    assert "a link of user 4711" in (owned.why_not(tmp_path / "link" / "cache", owner=os.getuid()) or "")


def test_the_way_behind_a_link_is_judged_too(tmp_path: Path) -> None:
    (tmp_path / "open" / "real").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "real")
    assert "everybody can exchange" in (owned.why_not(tmp_path / "link" / "cache", owner=os.getuid()) or "")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert "too many" in (owned.why_not(tmp_path / "one", owner=os.getuid()) or "").lower()


@pytest.mark.parametrize("mode", [0o700, 0o500, 0o701, 0o704, 0o710, 0o740, 0o750, 0o770, 0o777, 0o1777])
def test_the_last_resort_is_closed_to_everybody_else(tmp_path: Path, mode: int) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(mode)
    if mode & 0o077:
        with pytest.raises(KernelError, match="not safe"):
            trust.private_folder(tmp_path / "there")
    else:
        assert trust.private_folder(tmp_path / "there") == tmp_path / "there"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o705, 0o720, 0o770, 0o702, 0o707])
def test_a_cache_of_ones_own_may_be_read_by_others_and_not_written(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    why = owned.why_not(tmp_path / "cache", owner=os.getuid())
    assert (why is None) == (mode & 0o022 == 0)
    if why is not None:
        assert "others can write it (mode d" in why


@pytest.mark.parametrize("mode", [0o750, 0o770, 0o702, 0o777])
def test_a_cache_of_a_site_may_belong_to_a_group_and_not_to_everybody(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    assert (owned.why_not(tmp_path / "cache", owner=None) is None) == (mode & 0o002 == 0)


def test_the_last_resort_must_be_a_folder_of_ours_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(KernelError, match="not safe"):
        trust.private_folder(tmp_path / "open")
    (tmp_path / "link").symlink_to(trust.private_folder(tmp_path / "mine"))
    with pytest.raises(KernelError, match="not safe"):
        trust.private_folder(tmp_path / "link")
