"""A changed manifest is refused as a ManifestError, or it is another valid manifest. Nothing else can happen."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from precast.core.manifest import BuildInfo, ManifestError
from tests.property import strategies as s

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(
            ["", "..", "host/../x", "/etc/passwd", "sm_90", "cu130", "pure", "0" * 64, "torch-stable-2.10"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def read(text: str) -> BuildInfo | None:
    """None when refused; any exception but ManifestError fails the test by itself."""
    try:
        return BuildInfo.from_json(text)
    except ManifestError as error:
        message = str(error)
    assert message.startswith("$")
    return None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def parent_of(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


@given(s.build_infos, JSON, st.data())
def test_another_value_somewhere(info: BuildInfo, value: Any, data: st.DataObject) -> None:
    document = json.loads(info.to_json())
    path = data.draw(st.sampled_from(places(document)[1:]))
    parent_of(document, path)[path[-1]] = value
    found = read(json.dumps(document))
    assert found is None or BuildInfo.from_json(found.to_json()) == found


@given(s.build_infos, st.data())
def test_something_left_out(info: BuildInfo, data: st.DataObject) -> None:
    document = json.loads(info.to_json())
    path = data.draw(st.sampled_from(places(document)[1:]))
    del parent_of(document, path)[path[-1]]
    found = read(json.dumps(document))
    assert found is None if isinstance(path[-1], str) else found != info


@given(s.build_infos, st.text(min_size=1, max_size=4), JSON, st.data())
def test_a_key_nobody_knows(info: BuildInfo, key: str, value: Any, data: st.DataObject) -> None:
    document = json.loads(info.to_json())
    objects = [path for path in places(document) if isinstance(parent_of(document, (*path, "")), dict)]
    target = parent_of(document, (*data.draw(st.sampled_from(objects)), ""))
    if key not in target:
        target[key] = value
        assert read(json.dumps(document)) is None


@given(s.build_infos, st.data())
def test_another_character_somewhere(info: BuildInfo, data: st.DataObject) -> None:
    text = info.to_json()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + data.draw(st.integers(0, 2)) :]
    found = read(changed)
    assert found is None or BuildInfo.from_json(found.to_json()) == found


@given(s.build_infos, st.data())
def test_a_truncated_manifest_is_refused(info: BuildInfo, data: st.DataObject) -> None:
    text = info.to_json().rstrip()
    assert read(text[: data.draw(st.integers(0, len(text) - 1))]) is None


@given(st.text() | JSON.map(json.dumps))
def test_anything_else(text: str) -> None:
    assert read(text) is None
