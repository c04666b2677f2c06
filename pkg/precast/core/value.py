"""``@value(frozen=True)``: a frozen dataclass that costs a fortieth of the standard library's to define; and ``Words``.

``dataclasses.dataclass(frozen=True)`` compiles six methods for every class, which takes 0.5 ms. A first call defines
some thirty values, and half of its time would go there. Here the methods are written once, for all values. The standard
library's description of a class is made on first use, so ``dataclasses.fields``, ``replace`` and ``asdict`` work.

``class Colour(Words)`` is a ``class Colour(str, Enum)`` for a twentieth of its 7 us a member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

__all__ = ["Words", "value"]

T = TypeVar("T")


def _value(*, frozen: Literal[True], order: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen value: its annotated fields give equality, hash, repr and, with ``order``, the order."""

    def make(cls: type[T]) -> type[T]:
        if hasattr(cls, "__value_names__"):
            raise TypeError(f"{cls.__name__}: a value does not inherit from another")
        own = vars(cls)
        names = tuple(cls.__annotations__)
        defaults = {name: own[name] for name in names if name in own}
        if any(isinstance(default, dataclasses.Field) for default in defaults.values()):
            raise TypeError(f"{cls.__name__}: a value takes plain defaults, no dataclasses.field or default_factory")
        facts = {
            "__match_args__": names,
            "__value_names__": frozenset(names),
            "__value_defaults__": defaults,
            "__value_checks__": hasattr(cls, "__post_init__"),
            "__dataclass_fields__": _FIELDS,
        }
        for name, content in {**facts, **_METHODS, **(_ORDER if order else {})}.items():
            if name not in own:
                setattr(cls, name, content)
        return cls

    return make


class _Fields:
    """Makes the standard library's description of a value's fields on first use, where that library looks for it."""

    def __get__(self, instance: object, owner: type) -> Any:
        return dataclasses.dataclass(init=False, repr=False, eq=False)(owner).__dataclass_fields__  # type: ignore[attr-defined]


_FIELDS = _Fields()


def _init(self: Any, /, *args: object, **kwargs: object) -> None:
    cls = type(self)
    if not args and kwargs.keys() == cls.__value_names__:  # quick path: a manifest makes a hundred values this way
        vars(self).update(kwargs)
        if cls.__value_checks__:
            self.__post_init__()
        return
    names = cls.__match_args__
    given = dict(zip(names, args))  # noqa: B905 - too many are refused below
    state = {**cls.__value_defaults__, **given, **kwargs}
    if len(args) > len(names) or not given.keys().isdisjoint(kwargs) or state.keys() != cls.__value_names__:
        raise TypeError(
            f"{cls.__qualname__}({', '.join(names)}) got {len(args)} values by place, and by name {sorted(kwargs)}"
        )
    vars(self).update(state)
    if cls.__value_checks__:
        self.__post_init__()


def _key(self: Any) -> tuple[object, ...]:
    state = vars(self)
    return tuple([state[name] for name in type(self).__match_args__])


def _repr(self: Any) -> str:
    pairs = zip(type(self).__match_args__, _key(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={content!r}' for name, content in pairs)})"


def _eq(self: Any, other: object) -> bool:
    return _key(self) == _key(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self))


def _setattr(self: Any, name: str, content: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
}


def _lt(self: Any, other: object) -> bool:
    return _key(self) < _key(other) if type(other) is type(self) else NotImplemented


def _le(self: Any, other: object) -> bool:
    return _key(self) <= _key(other) if type(other) is type(self) else NotImplemented


def _gt(self: Any, other: object) -> bool:
    return _key(self) > _key(other) if type(other) is type(self) else NotImplemented


def _ge(self: Any, other: object) -> bool:
    return _key(self) >= _key(other) if type(other) is type(self) else NotImplemented


_ORDER: dict[str, Callable[..., Any]] = {"__lt__": _lt, "__le__": _le, "__gt__": _gt, "__ge__": _ge}


class _Members(type):
    """The class of a class of words, which is the collection of its members, in their order."""

    _words: dict[str, Any]

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls._words.values())

    def __len__(cls) -> int:
        return len(cls._words)

    def __getitem__(cls, name: str) -> Any:
        return next(word for word in cls if word.name == name)


class _Words(str, metaclass=_Members):  # noqa: SLOT000 - a member has its name
    """Words of which each is a member, written ``NAME = "word"``; ``Colour("word")`` is the member, or a ValueError."""

    name: str

    def __init_subclass__(cls) -> None:
        cls._words = {}
        for name, word in list(vars(cls).items()):
            if isinstance(word, str) and not name.startswith("_"):
                member = cls._words[word] = str.__new__(cls, word)
                member.name = name
                setattr(cls, name, member)

    def __new__(cls, word: str) -> Any:
        try:
            return cls._words[word]
        except KeyError:
            raise ValueError(f"{word!r} is not a valid {cls.__name__}; needed one of {', '.join(cls._words)}") from None

    @property
    def value(self) -> str:
        """The word as plain text."""
        return str(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


if TYPE_CHECKING:
    from dataclasses import dataclass as value  # known to type checkers
    from enum import Enum

    class Words(str, Enum):
        """The same to type checkers."""
else:
    value, Words = _value, _Words
