"""A strict reader of JSON objects: a table has a reader for each key, and every error names its place.

A reader is a function of a JSON value and its place, ``$.host[0].path``. It returns the value that the key stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Reader = Callable[[object, str], T]

_HEX = frozenset("0123456789abcdef")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_WORD = _LETTERS | frozenset("0123456789_")
_NAME = _WORD | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_FILE_NAME = _NAME | frozenset(".+-")


class ManifestError(ValueError):
    """A manifest with invalid content; the message begins with the JSON path."""


class NewerManifest(ManifestError):
    """A manifest of a later precast. ``readers`` are the versions that read it, such as ``>=1.1``, or empty."""

    def __init__(self, message: str, readers: str) -> None:
        super().__init__(message)
        self.readers = readers


def parse_object(text: str) -> dict[str, object]:
    """The root object of a JSON text. Refuses repeated keys, NaN, and anything that is not an object."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ManifestError:
        raise
    except ValueError as error:
        raise ManifestError(f"$: not JSON: {error}") from error
    except RecursionError as error:
        raise ManifestError("$: not a manifest: nested too deeply") from error
    return mapping(value, "$")


def fields(value: object, where: str, readers: Mapping[str, Reader[Any]]) -> dict[str, Any]:
    """An object with exactly these keys, each read by its reader."""
    given = mapping(value, where)
    found = {}
    for key, read in readers.items():
        if key not in given:
            raise ManifestError(f"{where}.{key}: missing")
        found[key] = read(given[key], f"{where}.{key}")
    if len(given) != len(found):
        raise ManifestError(f"{where}: unknown keys {sorted(given.keys() - readers.keys())}")
    return found


def record(make: Callable[..., T], readers: Mapping[str, Reader[Any]]) -> Reader[T]:
    """An object with exactly these keys, as the value that ``make`` makes of them."""
    return lambda value, where: make(**fields(value, where, readers))


def text(value: object, where: str) -> str:
    """A non-empty printable string."""
    if not isinstance(value, str):
        raise ManifestError(f"{where}: needed a string, found {_kind(value)}")
    if not value or not value.isprintable():
        raise ManifestError(f"{where}: needed printable text, found {value!r}")
    return value


def integer(value: object, where: str) -> int:
    """A whole number; True is not a number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ManifestError(f"{where}: needed a whole number, found {_kind(value)}")
    return value


def boolean(value: object, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ManifestError(f"{where}: needed true or false, found {_kind(value)}")
    return value


def mapping(value: object, where: str) -> dict[str, object]:
    """An object with any keys."""
    if not isinstance(value, dict):
        raise ManifestError(f"{where}: needed an object, found {_kind(value)}")
    return value


def optional(read: Reader[T], default: T | None = None) -> Reader[T | None]:
    """The default for null, otherwise what ``read`` gives."""
    return lambda value, where: default if value is None else read(value, where)


def parsed(parse: Callable[[str], T]) -> Reader[T]:
    """A string parsed by ``parse``, whose ValueError becomes a ManifestError that names the place."""

    def read(value: object, where: str) -> T:
        found = text(value, where)
        try:
            return parse(found)
        except ValueError as error:
            raise ManifestError(f"{where}: {error}") from error

    return read


def valid(parse: Callable[[str], object]) -> Reader[str]:
    """A string that ``parse`` takes, unchanged."""
    check = parsed(parse)

    def read(value: object, where: str) -> str:
        check(value, where)
        return str(value)

    return read


def checked(is_right: Callable[[str], bool], wanted: str) -> Reader[str]:
    """A string for which ``is_right`` holds."""

    def read(value: object, where: str) -> str:
        found = text(value, where)
        if not is_right(found):
            raise ManifestError(f"{where}: needed {wanted}, found {found!r}")
        return found

    return read


def exactly(wanted: T, where_from: str) -> Reader[T]:
    """One value alone."""

    def read(value: object, where: str) -> T:
        if type(value) is not type(wanted) or value != wanted:
            raise ManifestError(f"{where}: needed {wanted!r} {where_from}, found {value!r}")
        return wanted

    return read


def hexadecimal(least: int, most: int, wanted: str) -> Reader[str]:
    """So many lower-case hexadecimal digits."""
    return checked(lambda found: least <= len(found) <= most and _HEX.issuperset(found), wanted)


def pair(first: str, second: str) -> Reader[tuple[str, str]]:
    """An object with two texts."""
    readers: Mapping[str, Reader[Any]] = {first: text, second: text}

    def read(value: object, where: str) -> tuple[str, str]:
        known = fields(value, where, readers)
        return known[first], known[second]

    return read


def within(most: int) -> Reader[int]:
    """A whole number from 0 to ``most``."""

    def read(value: object, where: str) -> int:
        size = integer(value, where)
        if not 0 <= size <= most:
            raise ManifestError(f"{where}: needed 0 to {most}, found {size}")
        return size

    return read


def path_in(folder: str, *, around: bool = False) -> Reader[str]:
    """A path directly inside the folder: one check refuses absolute paths, ``..``, backslashes and NUL.

    ``around``: or one that begins with ``../`` and then only goes down, for a file that stays where it was.
    """

    def read(value: object, where: str) -> str:
        path = text(value, where)
        first, *names = path.split("/")
        if around and first == "..":
            names = [name for at, name in enumerate(names) if name != ".." or {*names[:at]} - {".."}]
        elif first != folder or len(names) != 1:
            names = []
        if not names or not all(name and name[0] not in ".+-" and _FILE_NAME.issuperset(name) for name in names):
            raise ManifestError(f"{where}: needed '{folder}/<file name>', found {path!r}")
        return path

    return read


def texts(is_right: Callable[[str], bool] = bool, wanted: str = "text") -> Reader[tuple[str, ...]]:
    """A list of non-empty printable strings without duplicates, for each of which ``is_right`` holds."""
    read_items = each(text)

    def read(value: object, where: str) -> tuple[str, ...]:
        found = read_items(value, where)
        if len(set(found)) != len(found):
            raise ManifestError(f"{where}: the item {_repeated(found)!r} is listed twice")
        for one in found:
            if not is_right(one):
                raise ManifestError(f"{where}: needed {wanted}, found {one!r}")
        return found

    return read


def each(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """A list of which each item is read by ``read``."""

    def read_all(value: object, where: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ManifestError(f"{where}: needed a list, found {_kind(value)}")
        return tuple([read(item, f"{where}[{i}]") for i, item in enumerate(value)])

    return read_all


def is_version(found: str) -> bool:
    """A version without label: numbers and letters between dots, a number first."""
    parts = found.split(".")
    return found.isascii() and parts[0].isdecimal() and all(part.isalnum() for part in parts)


def is_word(found: str) -> bool:
    """A lower-case word."""
    return found[0] in _LETTERS and _WORD.issuperset(found)


def is_name(found: str) -> bool:
    """Whether this can name a family, or a module of another package such as ``_C``."""
    return found[0] in _NAME and not found[0].isdigit() and _NAME.issuperset(found)


def is_python(found: str) -> bool:
    """A Python tag: none, the stable ABI, or one interpreter such as ``cp312`` and ``cp313t``."""
    minor = found.removeprefix("cp3").removesuffix("t")
    return found in ("none", "abi3") or (
        found.startswith("cp3") and found.isascii() and minor.isdecimal() and len(minor) <= 2
    )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = _repeated(name for name, _ in pairs)
        raise ManifestError(f"$: the key {twice!r} is given twice in the object with keys {sorted(result)}")
    return result


def _repeated(names: Iterable[str]) -> str:
    """The first of these names that comes a second time."""
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _no_constant(name: str) -> object:
    raise ManifestError(f"$: {name} is not a JSON number")


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
