"""Looking after the cache: every kind of damage is named, limits take what they should, and differences are told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder import cache_tools
from precast._builder.cache import BuildKey, Cache
from precast._builder.cache_tools import Entry, Limits

DAY = 86400.0
Keep = Callable[..., BuildKey]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Puts a build into the cache under ``tmp_path``."""

    def keep(name: str = "softmax", content: bytes = b"code", age_days: float = 0, **inputs: object) -> BuildKey:
        key = BuildKey(name, {"schema": 1, "kind": "device", **inputs})
        file = tmp_path / "made" / f"{name}.cubin"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        Cache(tmp_path).store(key, file, 1.5)
        then = time.time() - age_days * DAY
        os.utime(Cache(tmp_path).entry(key) / "meta.json", (then, then))
        return key

    return keep


def only(root: Path) -> Entry:
    (entry,) = cache_tools.read_entries(root)
    return entry


def test_a_whole_entry_tells_what_it_is(tmp_path: Path, keep: Keep) -> None:
    key = keep(target="sm_90")
    entry = only(tmp_path)
    assert (entry.label, entry.what, entry.seconds, entry.problem) == (str(key), "device sm_90", 1.5, None)
    assert entry.payload == Cache(tmp_path).lookup(key) and entry.bytes > 4 and entry.inputs == key.inputs
    assert cache_tools.read_entries(tmp_path, names=["other"]) == ()
    assert cache_tools.read_entries(tmp_path / "nowhere") == ()


def edit(entry: Path, **changes: object) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps(meta | changes))


def link(entry: Path) -> None:
    file = entry / "softmax.cubin"
    file.rename(entry.parent / "elsewhere")
    file.symlink_to(entry.parent / "elsewhere")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda e: (e / "softmax.cubin").write_bytes(b"c0de"), "softmax.cubin has sha256"),
    "empty": (lambda e: (e / "softmax.cubin").write_bytes(b""), "softmax.cubin has 0 bytes; meta.json says 4"),
    "gone": (lambda e: (e / "softmax.cubin").unlink(), "softmax.cubin: No such file"),
    "no meta": (lambda e: (e / "meta.json").unlink(), "meta.json: No such file"),
    "no json": (lambda e: (e / "meta.json").write_text("{"), "meta.json: $: not JSON"),
    "a list": (lambda e: (e / "meta.json").write_text("[]"), "meta.json: $: needed an object"),
    "half": (lambda e: edit(e, payload=None), "payload: needed a string"),
    "other inputs": (lambda e: edit(e, inputs={"kind": "device"}), "but its inputs have the key"),
    "a path": (lambda e: edit(e, payload="../../../made/softmax.cubin"), "payload: needed a plain file name"),
    "a link": (link, "softmax.cubin: a link, not a regular file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_pruned(tmp_path: Path, keep: Keep, name: str) -> None:
    change, problem = DAMAGES[name]
    entry = Cache(tmp_path).entry(keep())
    change(entry)
    assert problem in str(only(tmp_path).problem)
    (removal,) = cache_tools.plan_prune(tmp_path, Limits(), time.time())
    assert removal.path == entry and removal.why.startswith("damaged: ")
    assert entry.exists(), "a plan touches nothing"
    assert cache_tools.remove(tmp_path, [removal]) == removal.bytes
    assert not entry.exists() and cache_tools.read_entries(tmp_path) == ()
    assert (tmp_path / "made" / "softmax.cubin").exists(), "nothing outside the entry is touched"
    assert list((tmp_path / "v1/.staging").iterdir()) == []


def test_age_and_size_take_the_oldest(tmp_path: Path, keep: Keep) -> None:
    keys = [keep(content=bytes(1000), n=age, age_days=age) for age in (1, 5, 9)]
    folders = [Cache(tmp_path).entry(key) for key in keys]
    now = time.time()
    assert cache_tools.plan_prune(tmp_path, Limits(), now) == ()
    (old,) = cache_tools.plan_prune(tmp_path, Limits(older_than=now - 7 * DAY), now)
    assert (old.path, old.why) == (folders[2], "made 9.0 days ago")
    size = cache_tools.read_entry(folders[0]).bytes
    oldest = cache_tools.plan_prune(tmp_path, Limits(most_bytes=2 * size), now)
    assert [removal.path for removal in oldest] == [folders[2]]
    assert len(cache_tools.plan_prune(tmp_path, Limits(most_bytes=0), now)) == 3
    assert len(cache_tools.plan_prune(tmp_path, Limits(everything=True), now)) == 3


def test_an_entry_in_the_folder_of_another_key_is_told_by_its_own(tmp_path: Path, keep: Keep) -> None:
    key = keep()
    folder = Cache(tmp_path).entry(key)
    moved = folder.rename(folder.with_name("0" * 16))
    assert cache_tools.read_entry(moved).problem == f"meta.json is that of {folder.name}"
    assert len(folder.name) == 16 and key.digest.startswith(folder.name)


def test_at_a_limit_an_entry_stays(tmp_path: Path, keep: Keep) -> None:
    entry = cache_tools.read_entry(Cache(tmp_path).entry(keep(age_days=1)))
    for limits, gone in (
        (Limits(older_than=entry.made), 0),
        (Limits(older_than=entry.made + 1), 1),
        (Limits(most_bytes=entry.bytes), 0),
        (Limits(most_bytes=entry.bytes - 1), 1),
    ):
        assert len(cache_tools.plan_prune(tmp_path, limits, entry.made + 2)) == gone


def test_what_a_build_left_behind_is_abandoned_after_a_day(tmp_path: Path, keep: Keep) -> None:
    keep()
    for folder in (".staging", ".damaged", ".failed"):
        (tmp_path / "v1" / folder / "x").mkdir(parents=True)
        for age, gone in ((86_400, 0), (86_401, 1)):
            os.utime(tmp_path / "v1" / folder / "x", (1e9, 1e9))
            assert len(cache_tools.plan_prune(tmp_path, Limits(), 1e9 + age)) == gone, (folder, age)
        (tmp_path / "v1" / folder / "x").rmdir()


def test_leftovers_go_when_no_builder_can_have_them(tmp_path: Path, keep: Keep) -> None:
    keep()
    made = {}
    for folder in (".staging", ".damaged", ".failed", ".locks"):
        (tmp_path / "v1" / folder).mkdir(exist_ok=True)
        for age in (0.1, 2.0):
            made[folder, age] = path = tmp_path / "v1" / folder / f"x-{age}"
            path.mkdir() if folder != ".failed" else path.write_text("log")
            os.utime(path, (time.time() - age * DAY,) * 2)
    gone = {removal.path for removal in cache_tools.plan_prune(tmp_path, Limits(), time.time())}
    assert gone == {made[".staging", 2.0], made[".damaged", 2.0], made[".failed", 2.0]}
    everything = {removal.path for removal in cache_tools.plan_prune(tmp_path, Limits(everything=True), time.time())}
    assert made[".staging", 0.1] not in everything, "a build that may be running is left alone"
    assert made[".locks", 2.0] not in everything, "somebody may hold it"
    assert {made[".failed", 0.1], made[".damaged", 0.1]} <= everything


def test_what_is_gone_already_is_no_error(tmp_path: Path, keep: Keep) -> None:
    keep()
    removals = cache_tools.plan_prune(tmp_path, Limits(everything=True), time.time())
    assert cache_tools.remove(tmp_path, removals) > 0
    assert cache_tools.remove(tmp_path, removals) == 0


def test_the_nearest_entry_differs_least(tmp_path: Path, keep: Keep) -> None:
    keep(options=["-O3"], sources={"a.cu": "1", "b.cuh": "2"}, nvrtc="12.1")
    near = keep(options=["-O3"], sources={"a.cu": "1", "b.cuh": "3"}, nvrtc="13.0")
    keep(kind="host", options=["-O3"])
    wanted = BuildKey(
        "softmax",
        {
            "schema": 1,
            "kind": "device",
            "options": ["-O3", "-g"],
            "sources": {"a.cu": "1", "c.cuh": "2"},
            "nvrtc": "13.0",
        },
    )
    found = cache_tools.nearest(tmp_path, wanted)
    assert found is not None and found[0].label == str(near)
    assert [(d.field, d.needed, d.found) for d in found[1]] == [
        ("options", "-g", None),
        ("sources/b.cuh", None, "3"),
        ("sources/c.cuh", "2", None),
    ]
    assert cache_tools.nearest(tmp_path, BuildKey("rms_norm", {})) is None


def test_of_two_lists_only_what_differs_is_told() -> None:
    (swapped,) = cache_tools.differences({"flags": ["a", "b"]}, {"flags": ["b", "a"]})
    assert (swapped.needed, swapped.found) == ("a b", "the same in another order or number: b a")
    (other,) = cache_tools.differences({"flags": ["a", "b"]}, {"flags": ["b", "c", "d"]})
    assert (other.needed, other.found) == ("a", "c d")
