"""The state of one parameter, as a dictionary that says when an entry is exchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Watched(dict[str, Any]):
    """A plan holds the addresses of the state tensors. Looking at every entry before each step would take longer than
    the step; instead each way of changing an entry calls ``changed``.

    Copies and pickles of it are plain dictionaries.
    """

    __slots__ = ("changed",)
    __hash__ = None

    def __init__(self, values: dict[str, Any], changed: Callable[[], Any]) -> None:
        super().__init__(values)
        self.changed = changed

    # Equal means the same one: the entries are tensors, which compare element by element.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (), None, None, iter(self.items())

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.changed()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.changed()

    def __ior__(self, other: Any) -> Watched:  # type: ignore[override, misc]  # noqa: PYI034 - typing.Self is of 3.11
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        self.changed()

    def setdefault(self, key: str, default: Any = None) -> Any:
        value = super().setdefault(key, default)
        self.changed()
        return value

    def pop(self, *args: Any) -> Any:
        value = super().pop(*args)
        self.changed()
        return value

    def popitem(self) -> tuple[str, Any]:
        item = super().popitem()
        self.changed()
        return item

    def clear(self) -> None:
        super().clear()
        self.changed()
