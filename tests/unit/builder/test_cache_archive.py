"""Archives of builds: there and back again, and every lie an archive can tell refused before anything is written."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast._builder import cache_archive, cache_tools
from precast._builder.cache import BuildKey, Cache
from precast.errors import KernelError

CONTENT = {"rms_norm": b"one", "softmax": b"two"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A cache with two entries."""
    root = tmp_path / "source"
    for name, content in CONTENT.items():
        file = tmp_path / f"{name}.cubin"
        file.write_bytes(content)
        Cache(root).store(BuildKey(name, {"kind": "device", "target": "sm_90"}), file, 0.5)
    return root


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.xz"])
def test_there_and_back(source: Path, tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"cache.{suffix}"
    items = cache_archive.export_cache(cache_tools.read_entries(source), archive)
    assert sorted(item.key.name for item in items) == sorted(CONTENT)
    cache = Cache(tmp_path / "there")
    added, known = cache_archive.import_cache(archive, cache)
    assert (added, known) == (items, ())
    for item in items:
        found = cache.lookup(item.key)
        assert found is not None and found.read_bytes() == CONTENT[item.key.name]
    assert cache_archive.import_cache(archive, cache) == ((), items)
    assert [entry.problem for entry in cache_tools.read_entries(cache.root)] == [None, None]
    assert not list(tmp_path.glob(".cache*")), "nothing is left beside the archive"


def test_a_damaged_entry_is_not_carried_on(source: Path, tmp_path: Path) -> None:
    (damaged, whole) = cache_tools.read_entries(source)
    assert damaged.payload is not None
    damaged.payload.write_bytes(b"other")
    items = cache_archive.export_cache(cache_tools.read_entries(source), tmp_path / "cache.tar")
    assert [item.key.name for item in items] == [whole.name]


def test_a_name_without_a_known_suffix_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"\.zip"):
        cache_archive.export_cache(cache_tools.read_entries(source), tmp_path / "cache.zip")
    assert not (tmp_path / "cache.zip").exists()


class Forged:
    """An archive of one's own making."""

    def __init__(self) -> None:
        self.content = b"code"
        self.entry: dict[str, Any] = {
            "name": "softmax",
            "inputs": {"kind": "device"},
            "payload": "softmax.cubin",
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "bytes": len(self.content),
            "seconds": 0.5,
        }
        self.manifest: Any = {"schema": 1, "entries": [self.entry]}
        digest = BuildKey("softmax", self.entry["inputs"]).digest[:16]
        self.member = tarfile.TarInfo(f"softmax/{digest}/softmax.cubin")
        self.more: list[tuple[tarfile.TarInfo, bytes]] = []
        self.first = cache_archive.MANIFEST

    def write(self, path: Path) -> Path:
        with tarfile.open(path, "w") as tar:
            text = self.manifest if isinstance(self.manifest, bytes) else json.dumps(self.manifest).encode()
            members = [(tarfile.TarInfo(self.first), text), (self.member, self.content), *self.more]
            for info, data in members:
                info.size = 0 if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE) else len(data)
                tar.addfile(info, io.BytesIO(data))
        return path


def add(forged: Forged, name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    forged.more.append((info, b"evil"))


def turn_into(forged: Forged, kind: bytes) -> None:
    forged.member.type, forged.member.linkname = kind, "/etc/passwd"


LIES: dict[str, Callable[[Forged], object]] = {
    "a wrong hash": lambda f: f.entry.update(sha256="0" * 64),
    "another content": lambda f: setattr(f, "content", b"c0de"),
    "another size": lambda f: f.entry.update(bytes=3),
    "a path up": lambda f: add(f, "../../outside"),
    "an absolute path": lambda f: add(f, "/tmp/precast-outside"),
    "a stranger": lambda f: add(f, "v1/softmax/x"),
    "a payload with a path": lambda f: f.entry.update(payload="../../../outside"),
    "a payload that is hidden": lambda f: f.entry.update(payload=".bashrc"),
    "a payload that is the marker": lambda f: f.entry.update(payload="meta.json"),
    "a name with a path": lambda f: f.entry.update(name="../softmax"),
    "a hidden name": lambda f: f.entry.update(name=".locks"),
    "a symlink": lambda f: turn_into(f, tarfile.SYMTYPE),
    "a hard link": lambda f: turn_into(f, tarfile.LNKTYPE),
    "a folder": lambda f: turn_into(f, tarfile.DIRTYPE),
    "a device": lambda f: turn_into(f, tarfile.CHRTYPE),
    "other inputs": lambda f: f.entry["inputs"].update(target="sm_90"),
    "an entry twice": lambda f: f.manifest["entries"].append(f.entry),
    "a member twice": lambda f: f.more.append((f.member, f.content)),
    "a missing file": lambda f: f.manifest["entries"].append({**f.entry, "inputs": {}}),
    "no manifest": lambda f: setattr(f, "first", "readme"),
    "another schema": lambda f: f.manifest.update(schema=2),
    "a manifest that is a list": lambda f: setattr(f, "manifest", []),
    "a manifest that is no JSON": lambda f: setattr(f, "manifest", b"{"),
    "a deep manifest": lambda f: setattr(f, "manifest", b"[" * 100_000),
    "an entry that is no object": lambda f: f.manifest.update(entries=[1]),
    "a number for a name": lambda f: f.entry.update(name=3),
    "a negative size": lambda f: f.entry.update(bytes=-1),
    "a size that no library has": lambda f: f.entry.update(bytes=1 << 40),
    "a time that is none": lambda f: f.entry.update(seconds=float("nan")),
    "inputs that no key has": lambda f: f.entry["inputs"].update(x=float("inf")),
    "a size that is no whole number": lambda f: f.entry.update(bytes=4.0),
    "a time that is a text": lambda f: f.entry.update(seconds="1"),
    "a time before all times": lambda f: f.entry.update(seconds=-0.1),
    "a time of thirty years": lambda f: f.entry.update(seconds=1e9),
    "no size": lambda f: f.entry.pop("bytes"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    forged = Forged()
    LIES[name](forged)
    archive = forged.write(tmp_path / "cache.tar")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KernelError, match="nothing was changed") as refused:
        cache_archive.import_cache(archive, Cache(tmp_path / "cache"))
    assert "found" in str(refused.value) and "needed" in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before, "not even the cache folder is made"


def test_the_archive_that_the_lies_are_made_from_is_taken(tmp_path: Path) -> None:
    for number, seconds in enumerate((0.5, 1, 0, 999_999_999)):  # JSON has no other way to write a float that is whole
        forged = Forged()
        forged.entry.update(seconds=seconds)
        archive = forged.write(tmp_path / f"cache{number}.tar")
        (added,), _ = cache_archive.import_cache(archive, Cache(tmp_path / f"cache{number}"))
        assert (added.seconds, type(added.seconds)) == (seconds, float)


def test_the_manifest_of_an_archive_is_sorted_and_can_be_read(source: Path, tmp_path: Path) -> None:
    cache_archive.export_cache(cache_tools.read_entries(source), tmp_path / "cache.tar")
    with tarfile.open(tmp_path / "cache.tar") as tar:
        file = tar.extractfile(cache_archive.MANIFEST)
        assert file is not None
        text = file.read().decode()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True)
    assert text.startswith('{\n "entries": [\n  {\n   "bytes": 3,\n')


def test_what_is_no_tar_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04 not a tar", bytes(2000)):
        (tmp_path / "cache.tar").write_bytes(content)
        with pytest.raises(KernelError, match="nothing was changed"):
            cache_archive.import_cache(tmp_path / "cache.tar", Cache(tmp_path / "cache"))
    with pytest.raises(KernelError, match="No such file"):
        cache_archive.import_cache(tmp_path / "nowhere.tar", Cache(tmp_path / "cache"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(min_value=0), change=st.binary(min_size=1, max_size=8))
def test_a_changed_byte_is_refused_or_changes_nothing_that_counts(tmp_path: Path, at: int, change: bytes) -> None:
    archive = Forged().write(tmp_path / "cache.tar")
    data = bytearray(archive.read_bytes())
    at %= len(data)
    data[at : at + len(change)] = change
    archive.write_bytes(data)
    try:
        added, known = cache_archive.import_cache(archive, cache := Cache(tmp_path / "cache"))
    except KernelError:
        return
    for item in (*added, *known):
        found = cache.lookup(item.key)
        assert found is not None and found.read_bytes() == b"code"
