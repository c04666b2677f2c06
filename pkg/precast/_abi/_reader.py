"""A strict reader of JSON objects: each key is read once and type-checked, and every error names its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ManifestError(ValueError):
    """A manifest with invalid content; the message begins with the JSON path."""


class NewerManifest(ManifestError):
    """A manifest of a later precast. ``readers`` are the versions that read it, such as ``>=1.1``, or empty."""

    def __init__(self, message: str, readers: str) -> None:
        super().__init__(message)
        self.readers = readers


def parse_object(text: str) -> Reader:
    """The root object of a JSON text. Refuses repeated keys, NaN, and anything that is not an object."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ManifestError:
        raise
    except ValueError as error:
        raise ManifestError(f"$: not JSON: {error}") from error
    except RecursionError as error:
        raise ManifestError("$: not a manifest: nested too deeply") from error
    return Reader(value, "$")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ManifestError(f"$: a key is given twice in the object with keys {sorted(result)}")
    return result


def _no_constant(name: str) -> object:
    raise ManifestError(f"$: {name} is not a JSON number")


class Reader:
    """One JSON object whose keys are taken one by one; :meth:`finish` refuses keys that were not taken."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise ManifestError(f"{where}: wanted an object, found {_kind(value)}")
        self._left: dict[str, object] = dict(value)
        self.where = where

    def at(self, key: str) -> str:
        """The JSON path of a key."""
        return f"{self.where}.{key}"

    def take(self, key: str) -> object:
        """The value of a required key."""
        if key not in self._left:
            raise ManifestError(f"{self.at(key)}: missing")
        return self._left.pop(key)

    def text(self, key: str) -> str:
        """A non-empty printable string."""
        return _text(self.take(key), self.at(key))

    def integer(self, key: str) -> int:
        """A whole number; True is not a number."""
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ManifestError(f"{self.at(key)}: wanted a whole number, found {_kind(value)}")
        return value

    def boolean(self, key: str) -> bool:
        """True or false."""
        value = self.take(key)
        if not isinstance(value, bool):
            raise ManifestError(f"{self.at(key)}: wanted true or false, found {_kind(value)}")
        return value

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        """None for null, otherwise the result of ``read(key)``."""
        if key in self._left and self._left[key] is None:
            del self._left[key]
            return None
        return read(key)

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """A string parsed by ``parse``, whose ValueError becomes a ManifestError that names the place."""
        text = self.text(key)
        try:
            return parse(text)
        except ValueError as error:
            raise ManifestError(f"{self.at(key)}: {error}") from error

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty printable strings without duplicates."""
        found = tuple(_text(item, f"{self.at(key)}[{i}]") for i, item in enumerate(self._list(key)))
        if len(set(found)) != len(found):
            raise ManifestError(f"{self.at(key)}: holds an item twice: {list(found)}")
        return found

    def objects(self, key: str, read: Callable[[Reader], T]) -> tuple[T, ...]:
        """A list of objects, each read completely by ``read``."""
        found = []
        for i, item in enumerate(self._list(key)):
            reader = Reader(item, f"{self.at(key)}[{i}]")
            found.append(read(reader))
            reader.finish()
        return tuple(found)

    def rest(self) -> dict[str, object]:
        """The keys that were not taken, with their values; they count as taken."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Refuse the keys that were not taken."""
        if self._left:
            raise ManifestError(f"{self.where}: unknown keys {sorted(self._left)}")

    def _list(self, key: str) -> list[object]:
        value = self.take(key)
        if not isinstance(value, list):
            raise ManifestError(f"{self.at(key)}: wanted a list, found {_kind(value)}")
        return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ManifestError(f"{where}: wanted a string, found {_kind(value)}")
    if not value or not value.isprintable():
        raise ManifestError(f"{where}: wanted printable text, found {value!r}")
    return value


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
