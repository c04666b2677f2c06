"""Folders that somebody else could have put something into are not loaded from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precast._build import trust
from precast._build.cache import BuildKey, Cache
from precast.errors import KernelError

KEY = BuildKey("family", {"schema": 1})


def build(staging: Path) -> Path:
    (staging / "out.so").write_text("payload")
    return staging / "out.so"


def test_what_is_made_is_for_its_owner_alone_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = Cache(tmp_path / "a" / "cache").obtain(KEY, build)
    finally:
        os.umask(before)
    folders = [folder for folder in made.path.parents if tmp_path in folder.parents]
    assert len(folders) == 5
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_cache_that_others_can_write_is_refused_with_nothing_written(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(KernelError, match="others can write into it") as caught:
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
    with pytest.raises(KernelError, match="others can write into it"):
        Cache(tmp_path / "cache").lookup(KEY)


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(KernelError, match=f"owner {uid} of"):
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
    assert trust.why_not(tmp_path / "link" / "cache", owner=os.getuid()) is None, "one's own link is one's own business"
    lstat = Path.lstat

    def of_another(self: Path) -> os.stat_result:
        facts = list(lstat(self))
        if self.name == "link":
            facts[4] = 4711
        return os.stat_result(facts)

    monkeypatch.setattr(Path, "lstat", of_another)
    assert "a link of user 4711" in (trust.why_not(tmp_path / "link" / "cache", owner=os.getuid()) or "")


def test_the_way_behind_a_link_is_judged_too(tmp_path: Path) -> None:
    (tmp_path / "open" / "real").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "real")
    assert "everybody can exchange" in (trust.why_not(tmp_path / "link" / "cache", owner=os.getuid()) or "")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert "too many" in (trust.why_not(tmp_path / "one", owner=os.getuid()) or "").lower()


def test_the_last_resort_must_be_a_folder_of_ours_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(KernelError, match="not safe"):
        trust.private_folder(tmp_path / "open")
    (tmp_path / "link").symlink_to(trust.private_folder(tmp_path / "mine"))
    with pytest.raises(KernelError, match="not safe"):
        trust.private_folder(tmp_path / "link")
