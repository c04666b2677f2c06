"""The build cache: one build for many askers, nothing half-made ever seen, damage found and built again."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import cache as cache_module
from precast._builder import entry as entry_module
from precast._builder import lock, roots
from precast._builder.cache import BuildKey, Cache, default_root
from precast.errors import BuildFailed, KernelError

KEY = BuildKey("family", {"schema": 1, "sources": {"a.cpp": "00"}})


def writes(text: str = "payload", calls: list[int] | None = None) -> object:
    def build(staging: Path) -> Path:
        if calls is not None:
            calls.append(1)
        (staging / "build.log").write_text("the log")
        (staging / "leftover.o").write_text("not part of the entry")
        (staging / "work").mkdir()
        payload = staging / "out.so"
        payload.write_text(text)
        return payload

    return build


def test_a_build_is_kept_and_found_again(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path), list[int]()
    assert cache.lookup(KEY) is None
    first = cache.obtain(KEY, writes(calls=calls))
    again = Cache(tmp_path).obtain(KEY, writes(calls=calls))
    assert (first.cached, again.cached, len(calls)) == (False, True, 1)
    assert first.path == again.path == tmp_path / "v1" / "family" / KEY.digest[:16] / "out.so"
    assert again.sha256 == first.sha256 and again.seconds == 0
    assert {path.name for path in first.path.parent.iterdir()} == {"out.so", "build.log", "meta.json"}


def test_payload_marker_and_name_reach_the_disk_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut an entry with a marker must have its payload."""
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def fsynced(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        done.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsynced)
    monkeypatch.setattr(Path, "rename", renamed)
    Cache(tmp_path).obtain(KEY, writes())
    assert sorted(done[:-2]) == ["build.log", "out.so"] and done[-2:] == ["meta.json", "rename"]


def test_the_meta_file_tells_what_went_in(tmp_path: Path) -> None:
    made = Cache(tmp_path).obtain(KEY, writes())
    meta = json.loads((made.path.parent / "meta.json").read_text())
    assert meta["inputs"] == KEY.inputs and meta["key"] == KEY.digest and meta["sha256"] == made.sha256


def test_equal_inputs_give_equal_keys_whatever_their_order() -> None:
    assert BuildKey("n", {"a": 1, "b": 2}).digest == BuildKey("n", {"b": 2, "a": 1}).digest
    assert BuildKey("n", {"a": 1, "b": 2}).digest != BuildKey("n", {"a": 1, "b": 3}).digest


def test_every_key_has_the_one_schema(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    before = BuildKey.of("n", "device", {"a": 1})
    assert before == BuildKey("n", {"schema": 1, "kind": "device", "a": 1})
    monkeypatch.setattr(entry_module, "SCHEMA", 2)
    assert BuildKey.of("n", "device", {"a": 1}).digest != before.digest
    package = checkout / "pkg" / "precast"
    texts = {
        path: path.read_text() for part in ("_builder", "_cubin", "extension") for path in (package / part).glob("*.py")
    }
    assert [path.name for path, text in texts.items() if '"schema": SCHEMA' in text] == ["cache_archive.py", "entry.py"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "out.so").write_text("PAYLOAD"),
        lambda entry: (entry / "out.so").unlink(),
        lambda entry: (entry / "meta.json").unlink(),
        lambda entry: (entry / "meta.json").write_text("{"),
        lambda entry: (entry / "meta.json").write_text("[]"),
        lambda entry: (entry / "meta.json").write_text('{"schema": 1}'),
    ],
    ids=["bit flip", "no payload", "no marker", "half a marker", "another shape", "keys missing"],
)
def test_a_damaged_entry_is_moved_aside_and_built_again(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path)
    entry = cache.obtain(KEY, writes()).path.parent
    damage(entry)
    with caplog.at_level(logging.WARNING, "precast"):
        assert cache.lookup(KEY) is None
        made = cache.obtain(KEY, writes())
    assert not made.cached and made.path.read_text() == "payload"
    assert len(list((tmp_path / "v1" / ".damaged").iterdir())) == 1
    assert "made again" in caplog.text


def test_a_failed_build_leaves_no_entry_and_no_staging(tmp_path: Path) -> None:
    def fails(staging: Path) -> Path:
        (staging / "half").write_text("x")
        raise BuildFailed("no")

    cache = Cache(tmp_path)
    with pytest.raises(BuildFailed):
        cache.obtain(KEY, fails)
    assert cache.lookup(KEY) is None and not list((tmp_path / "v1" / ".staging").iterdir())


def test_threads_build_once(tmp_path: Path) -> None:
    calls: list[int] = []
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(Cache(tmp_path).obtain(KEY, writes(calls=calls)).sha256))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(results) == 8 and len(set(results)) == 1


CHILD = """
import sys, time
from pathlib import Path
from precast._builder.cache import BuildKey, Cache
def build(staging):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    time.sleep(0.3)
    (staging / "out.so").write_text("payload")
    return staging / "out.so"
made = Cache(Path(sys.argv[1])).obtain(BuildKey("family", {"schema": 1, "sources": {"a.cpp": "00"}}), build)
print(made.cached, made.path.read_text())
"""


def test_processes_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", CHILD, str(tmp_path / "cache"), str(log)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert [child.returncode for child in children] == [0, 0, 0]
    assert answers == ["False payload", "True payload", "True payload"] and log.read_text() == "built\n"


def test_without_a_lock_the_loser_takes_what_is_there(tmp_path: Path) -> None:
    """Two hosts on a file system without locks: whoever publishes second finds an equal entry, and uses it."""
    cache = Cache(tmp_path)

    def build(staging: Path) -> Path:
        Cache(tmp_path).store(KEY, writer(tmp_path), 0.0)
        return writes()(staging)

    made = cache.obtain(KEY, build)
    assert made.path.is_file() and cache.lookup(KEY) == made.path
    assert not (tmp_path / "v1" / ".damaged").exists()


def writer(folder: Path) -> Path:
    path = folder / "out.so"
    path.write_text("payload")
    return path


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    with pytest.raises(KernelError, match=f"{blocked}") as caught:
        Cache(blocked).obtain(KEY, writes())
    assert "PRECAST_CACHE_DIR" in str(caught.value) and not isinstance(caught.value, BuildFailed)


def test_a_full_or_read_only_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root a mode bit stops nobody, so the refusal of the file system is played."""

    def refuse(*_: object, **__: object) -> str:
        raise OSError(30, "Read-only file system", str(tmp_path / "v1"))

    monkeypatch.setattr(cache_module.tempfile, "mkdtemp", refuse)
    with pytest.raises(KernelError, match="Read-only file system"):
        Cache(tmp_path).obtain(KEY, writes())


def test_an_error_of_the_build_itself_is_not_blamed_on_the_cache(tmp_path: Path) -> None:
    def build(staging: Path) -> Path:
        return Path("/nowhere/at/all").rename(staging)

    with pytest.raises(FileNotFoundError):
        Cache(tmp_path).obtain(KEY, build)


def test_the_root_is_what_the_user_said_else_xdg_else_home(tmp_path: Path) -> None:
    assert default_root(Settings(cache_dir="/a/b", home=str(tmp_path))) == Path("/a/b")
    assert default_root(Settings(xdg_cache_home=str(tmp_path / "x"), home="/h")) == tmp_path / "x" / "precast"
    assert default_root(Settings(home=str(tmp_path))) == tmp_path / ".cache" / "precast"
    assert not (tmp_path / ".cache").exists(), "asking makes nothing"


def test_without_a_home_a_private_folder_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(roots.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "precast"):
        root = default_root(Settings(home=str(tmp_path / "file")))
    assert root == tmp_path / f"precast-{os.getuid()}" and root.stat().st_mode & 0o777 == 0o700
    assert "cannot be written" in caplog.text


def test_a_cache_that_a_site_filled_is_used_and_never_written(tmp_path: Path) -> None:
    made = Cache(tmp_path / "site").obtain(KEY, writes())
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    cache = Cache(tmp_path / "home" / "cache", search=(tmp_path / "absent", tmp_path / "site"))
    found = cache.obtain(KEY, never)
    assert (found.path, found.cached) == (made.path, True) and cache.lookup(KEY) == made.path
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def never(staging: Path) -> Path:
    raise AssertionError("built although it was there")


def test_a_damaged_entry_of_a_site_is_left_there_and_built_at_home(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Cache(tmp_path / "site").obtain(KEY, writes()).path.write_text("PAYLOAD")
    cache = Cache(tmp_path / "home", search=(tmp_path / "site",))
    with caplog.at_level(logging.WARNING, "precast"):
        made = cache.obtain(KEY, writes())
    assert made.path.is_relative_to(tmp_path / "home") and not made.cached
    assert not (tmp_path / "site" / "v1" / ".damaged").exists()
    assert f"{tmp_path / 'site'}" in caplog.text and "is not used" in caplog.text


@pytest.mark.parametrize("what", ["", "v1", "v1/family", f"v1/family/{KEY.digest[:16]}/out.so"])
@pytest.mark.parametrize("mode", [0o777, 0o1777], ids=["open", "sticky"])
def test_what_everybody_can_write_in_a_site_cache_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str, mode: int
) -> None:
    Cache(tmp_path / "site").obtain(KEY, writes())
    (tmp_path / "site" / what).chmod(mode)
    cache = Cache(tmp_path / "home", search=(tmp_path / "site",))
    with caplog.at_level(logging.WARNING, "precast"):
        assert not cache.obtain(KEY, writes()).cached
    assert "others can write it" in caplog.text and "rwxrwxrw" in caplog.text


def test_the_search_path_is_read_like_a_path() -> None:
    assert roots.search_path(Settings(cache_path="/a::/b/c:")) == (Path("/a"), Path("/b/c"))
    assert roots.search_path(Settings()) == ()


def test_what_a_killed_process_left_is_swept_and_what_others_build_is_not(tmp_path: Path) -> None:
    staging = tmp_path / "v1" / ".staging"
    staging.mkdir(parents=True)
    here = lock.this_machine()
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, alive, elsewhere = (
        staging / name for name in (f"{here}-{gone.pid}-a", f"{here}-{os.getpid()}-b", "host-1-c")
    )
    for folder in (dead, alive, elsewhere):
        folder.mkdir()
    Cache(tmp_path).obtain(KEY, writes())
    assert sorted(staging.iterdir()) == sorted([alive, elsewhere])


def test_a_build_that_cannot_be_kept_serves_this_process_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error", str(target))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr(cache_module, "_copy", full)
    with caplog.at_level(logging.WARNING, "precast"):
        made = Cache(tmp_path / "cache").obtain(KEY, writes())
    assert made.path.read_text() == "payload" and not made.path.is_relative_to(tmp_path)
    assert made.path.parents[1].stat().st_mode & 0o777 == 0o700
    assert "not kept for later" in caplog.text and "No space left" in caplog.text
    assert not list((tmp_path / "cache" / "v1" / ".staging").iterdir())


def test_what_is_to_be_stored_and_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(KernelError, match="cannot be written"):
        Cache(tmp_path / "cache").store(KEY, writer(tmp_path), 0.0)
    Cache(tmp_path / "cache").spare(KEY, tmp_path / "out.so", 0.0)  # what only saves work may fail


@pytest.mark.parametrize("error", [18, 1, 39], ids=["EXDEV", "EPERM", "ENOTEMPTY"])
def test_a_file_system_that_renames_no_folders_gets_its_entry_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(error, os.strerror(error), str(target))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        made = Cache(tmp_path).obtain(KEY, writes())
    assert made.path == Cache(tmp_path).lookup(KEY)
    assert {path.name for path in made.path.parent.iterdir()} == {"out.so", "build.log", "meta.json"}


def test_an_interrupted_build_leaves_nothing_and_can_be_started_again(tmp_path: Path) -> None:
    def interrupted(staging: Path) -> Path:
        (staging / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).obtain(KEY, interrupted)
    assert list(tmp_path.rglob("half")) == [] and not list((tmp_path / "v1" / ".staging").iterdir())
    assert not Cache(tmp_path, wait_s=0).obtain(KEY, writes()).cached
