"""What an entry says of itself is checked, all of it, before anything is done with its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precast._builder.entry import BuildKey, Meta, NotWhole, verify
from tests.kit import odd

KEY = BuildKey("family", {"schema": 1, "sources": {"a.cpp": "00"}})


def make_entry(folder: Path) -> Path:
    folder.mkdir()
    (folder / "out.so").write_bytes(b"payload")
    (folder / "meta.json").write_text(Meta.of(KEY, "out.so", b"payload", 1.5).to_json())
    return folder


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = verify(make_entry(tmp_path / "e"), KEY.digest, owner=os.getuid())
    assert found is not None
    assert found[0] == tmp_path / "e" / "out.so"
    assert found[1] == Meta.of(KEY, "out.so", b"payload", 1.5) == Meta.from_json(found[1].to_json().encode())


def test_no_folder_is_no_entry_and_no_damage(tmp_path: Path) -> None:
    assert verify(tmp_path / "nothing", KEY.digest, owner=os.getuid()) is None


def test_an_empty_folder_is_damage(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    with pytest.raises(NotWhole, match=r"meta.json: No such file"):
        verify(tmp_path / "e", KEY.digest, owner=os.getuid())


def edit(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda meta: {**meta, **changes}


LIES = [
    (edit(payload="../../../etc/passwd"), "payload: needed a plain file name, found '../../../etc/passwd'"),
    (edit(payload="/etc/passwd"), "payload"),
    (edit(payload=".."), "payload"),
    (edit(payload="meta.json"), "payload: needed a plain file name, found 'meta.json'"),
    (edit(payload="build.log"), "found 'build.log'"),
    (edit(payload="out.so\n"), "payload"),
    (edit(payload=None), "payload: needed a string, found null"),
    (edit(bytes=8), r"has 7 bytes; meta.json says 8"),
    (edit(bytes=True), "bytes: needed a whole number"),
    (edit(bytes=-1), "bytes: needed 0 to 4294967296, found -1"),
    (edit(sha256="0" * 64), "has sha256 239f59ed"),
    (edit(sha256="0" * 63), "sha256: needed 64 lower-case hexadecimal digits"),
    (edit(key="0" * 64), "but its inputs have the key "),
    (edit(inputs={}), "but its inputs have the key "),
    (edit(inputs=[]), "inputs: needed an object, found a list"),
    (edit(seconds="1"), "seconds: needed a number of seconds from 0 on, found '1'"),
    (edit(seconds=-1), "found -1"),
    (edit(schema=2), "schema: needed 1 for this version of precast, found 2"),
    (edit(more=1), "unknown keys"),
    (lambda meta: {key: value for key, value in meta.items() if key != "seconds"}, "seconds: missing"),
]


@pytest.mark.parametrize(("change", "said"), LIES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_lie_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], said: str) -> None:
    path = make_entry(tmp_path / "e") / "meta.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(NotWhole, match=said):
        verify(tmp_path / "e", KEY.digest, owner=os.getuid())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut"),
        pytest.param("[]", id="list"),
        pytest.param("null", id="null"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"key": 1, "key": 2}', id="twice"),
        pytest.param('{"seconds": NaN}', id="nan"),
        pytest.param('{"a": ' + "1" * 5000 + "}", id="long number"),
        pytest.param("\0", id="zero"),
    ],
)
def test_what_is_no_meta_file_is_named(text: str) -> None:
    with pytest.raises(NotWhole):
        Meta.from_json(text.encode())


def test_bytes_that_are_no_text_and_a_file_without_an_end_are_named() -> None:
    with pytest.raises(NotWhole):
        Meta.from_json(b"\xff\xfe")
    with pytest.raises(NotWhole, match="has 16777217 bytes"):
        Meta.from_json(b" " * ((1 << 24) + 1))


@pytest.mark.parametrize("name", ["meta.json", "out.so"])
@pytest.mark.parametrize("kind", odd.ODD)
@pytest.mark.parametrize("own", [True, False])
def test_an_odd_file_is_damage_and_is_named_at_once(tmp_path: Path, name: str, kind: str, own: bool) -> None:
    path = make_entry(tmp_path / "e") / name
    odd.put(kind, path)
    with odd.no_hang(), pytest.raises(NotWhole, match=name):
        verify(tmp_path / "e", KEY.digest, owner=os.getuid() if own else None)


def test_a_size_that_no_file_may_have_is_refused_with_nothing_read(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "e")
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps(meta | {"bytes": odd.HUGE}))
    odd.put("sparse", entry / "out.so")
    with odd.no_hang(), pytest.raises(NotWhole, match=f"found {odd.HUGE}"):
        verify(entry, KEY.digest, owner=os.getuid())


def test_the_entry_of_another_key_is_not_taken(tmp_path: Path) -> None:
    """Sixteen digits name the folder; the whole key must agree."""
    with pytest.raises(NotWhole, match="of another build"):
        verify(make_entry(tmp_path / "e"), KEY.digest[:16] + "0" * 48, owner=os.getuid())
