"""Nine guards of a package cost little: one manifest is parsed, and a large library is hashed once per installation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.build import alone, facts
from precast.core import opening, verify
from precast.core.manifest import BuildInfo, BuildMode, HostFile
from precast.core.version import Label
from precast.errors import PrebuiltRefused
from tests.kit import spawn

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

SOURCE = """
#include <Python.h>
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, nullptr}};
PyMODINIT_FUNC PyInit_{name}() {{ return PyModule_Create(&module); }}
"""
MODULES = 31  # of this package, that the first guard loads
CHILD = """
import hashlib, json, sys
import torch
import nine_ops
digests, texts = [], []
sha256, loads = hashlib.sha256, json.loads
hashlib.sha256 = lambda *given, **named: digests.append(1) or sha256(*given, **named)
json.loads = lambda *given, **named: texts.append(1) or loads(*given, **named)
before = set(sys.modules)
loaded = []
for number in range(9):
    __import__(f"nine_ops.op{number}")
    loaded.append(sorted(name for name in set(sys.modules) - before if "precast" in name))
print(json.dumps([loaded[0], loaded[8], len(digests), len(texts)]))
"""


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with nine modules behind guards."""
    import sysconfig

    root = tmp_path_factory.mktemp("nine")
    package = root / "nine_ops"
    (package / "_C" / "host").mkdir(parents=True)
    (package / "__init__.py").touch()
    found: list[HostFile] = []
    for number in range(9):
        name = f"op{number}"
        path, include = package / "_C" / "host" / f"{name}.so", sysconfig.get_paths()["include"]
        spawn.library(path, SOURCE.format(name=name), f"-I{include}")
        library = facts.compiled(f"nine_ops.{name}", ".so", path.read_bytes(), limited=False)
        found.append(facts.entry(library, None, Label("")))
        (package / f"{name}.py").write_text(alone.text(f"nine_ops/{name}.py", {"nine_ops/__init__.py"}))
    (package / alone.COPY).mkdir()
    for name, content in alone.copied().items():
        (package / alone.COPY / name).write_bytes(content)
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, host=tuple(found))
    (package / "_C" / verify.MANIFEST).write_text(info.to_json())
    return root


def test_nine_guards_load_hash_and_parse_little(nine: Path) -> None:
    """What takes their time, as counts: modules loaded, libraries hashed, manifests parsed."""
    env = os.environ | {"PYTHONPATH": str(nine)}
    first, last, digests, texts = json.loads(spawn.python("-c", CHILD, env=env).stdout)
    assert 0 < len(first) <= MODULES
    assert last == first  # the others load nothing
    assert all(name.startswith("nine_ops._precast") for name in last)
    assert texts == 1
    assert 9 <= digests <= 10  # one for each library; one for the manifest at most


def test_one_manifest_is_parsed_until_another_takes_its_place(nine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, parsed = nine / "nine_ops" / "_C", list[Path]()
    usual = verify.read_manifest
    monkeypatch.setattr(verify, "read_manifest", lambda place: (parsed.append(place), usual(place))[1])
    verify._parsed.cache_clear()
    first = verify.manifest(folder)
    assert verify.manifest(folder) is first and parsed == [folder]
    text = (folder / verify.MANIFEST).read_text()
    other = nine / "other.json"
    other.write_text(json.dumps(json.loads(text) | {"version": "2.0"}))
    try:
        other.replace(folder / verify.MANIFEST)
        again = verify.manifest(folder)
        assert again is not None and again.version == "2.0"
    finally:
        (folder / verify.MANIFEST).write_text(text)


@pytest.fixture
def hashed(nine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The libraries that are hashed, where every library is large; the cache is empty."""
    monkeypatch.syspath_prepend(nine)
    found = list[str]()
    usual = verify.content
    monkeypatch.setattr(verify, "LARGE_BYTES", 0)
    monkeypatch.setattr(verify, "content", lambda file, place: (found.append(file.path), usual(file, place))[1])
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    return found


def test_a_large_library_is_hashed_once_and_again_when_it_changes(nine: Path, hashed: list[str]) -> None:
    for _ in range(3):
        opening.library_file("nine_ops", "op3")
    assert hashed == ["host/op3.so"]
    path = nine / "nine_ops" / "_C" / "host" / "op3.so"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-1] + b"x")
        with pytest.raises(PrebuiltRefused, match="checksum mismatch"):
            opening.library_file("nine_ops", "op3")
    finally:
        path.write_bytes(whole)
    assert opening.library_file("nine_ops", "op3") == path and hashed == ["host/op3.so"] * 3


@pytest.mark.parametrize(
    "spoil", [lambda root: root.chmod(0o777), lambda root: root.chmod(0o500)], ids=["open", "full"]
)
def test_a_cache_that_others_can_write_is_not_believed(
    nine: Path, hashed: list[str], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "cache")
    opening.library_file("nine_ops", "op4")
    opening.library_file("nine_ops", "op4")
    wanted = 1 if os.getuid() == 0 and oct((tmp_path / "cache").stat().st_mode).endswith("500") else 2
    assert hashed == ["host/op4.so"] * wanted  # root may write everywhere


def test_a_note_of_another_answer_is_no_note(nine: Path, hashed: list[str], tmp_path: Path) -> None:
    opening.library_file("nine_ops", "op5")
    (note,) = (tmp_path / "cache" / "proved").iterdir()
    note.write_text("another text")
    file = next(one for one in verify.manifest(nine / "nine_ops" / "_C").host if one.path.endswith("op5.so"))  # type: ignore[union-attr]
    assert verify.exports(file, nine / "nine_ops" / "_C", "PyInit_op5")
    assert hashed == ["host/op5.so"] * 2
