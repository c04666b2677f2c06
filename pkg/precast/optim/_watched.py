"""Lists and dicts that report changes, for the parameters and states of an optimizer.

A plan is made for certain parameters and state tensors. Comparing all of them before each step would take longer than
the rest of the step's host work. Instead, every method that changes such a list or dict calls ``changed``. Copies and
pickles are plain lists and dicts.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from operator import is_
from typing import Any, TypeVar

from torch import Tensor

Changed = Callable[[], Any]
_Class = TypeVar("_Class", bound="type[Any]")

_OF_DICTS = ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update")
_OF_LISTS = (
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
    *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
)


def _telling(names: tuple[str, ...]) -> Callable[[_Class], _Class]:
    """Make methods of a class call ``changed`` afterwards, even if they fail half-way."""

    def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            finally:
                self.changed()

        return call

    def decorate(cls: _Class) -> _Class:
        for name in names:
            setattr(cls, name, wrapper(getattr(cls, name)))
        return cls

    return decorate


@_telling(_OF_DICTS)
class State(dict[str, Any]):
    """The state of one parameter."""

    __slots__ = ("changed",)

    def __init__(self, values: dict[str, Any], changed: Changed) -> None:
        self.changed = changed
        super().__init__(values)

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (), None, None, iter(self.items())


@_telling(_OF_DICTS)
class States(defaultdict[Tensor, Any]):
    """The states of an optimizer."""

    __slots__ = ("changed",)

    def __init__(self, values: defaultdict[Tensor, Any], changed: Changed) -> None:
        self.changed = changed
        super().__init__(dict, values)

    def copy(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        """Return a plain defaultdict."""
        return defaultdict(self.default_factory, self)

    __copy__ = copy  # type: ignore[assignment]

    def __reduce_ex__(self, _: Any) -> Any:
        return defaultdict, (self.default_factory,), None, None, iter(self.items())


@_telling(_OF_LISTS)
class Params(list[Tensor]):
    """The parameters of one group."""

    __slots__ = ("changed",)

    def __init__(self, values: list[Tensor], changed: Changed) -> None:
        self.changed = changed
        super().__init__(values)

    def __reduce_ex__(self, _: Any) -> Any:
        return list, (), None, iter(self)


class Seen:
    """The recorded items of a container, to detect changes; needs no comparison if it reports to ``changed``."""

    __slots__ = ("_container", "_items", "_watched")

    def __init__(self, container: Any, changed: Changed) -> None:
        self._container = container
        self._items = _items(container)
        self._watched = is_watched(container, changed)

    def still(self, container: Any) -> bool:
        """Whether ``container`` has the recorded items, in the same order."""
        if self._watched and container is self._container:
            return True
        items = _items(container)
        return len(items) == len(self._items) and all(map(is_, items, self._items))


def is_watched(container: Any, changed: Changed) -> bool:
    """Whether a container reports changes to this callback."""
    return getattr(container, "changed", None) is changed


def _items(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)
