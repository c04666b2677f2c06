"""The result of loading an extension: an object that is used like a compiled module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precast._load.source import Source


class KernelModule:
    """Functions and classes as attributes, and the origin of the machine code behind them.

    ``source`` is the host library. ``images`` are the device code of each GPU, by its index.
    """

    def __init__(
        self, name: str, members: Mapping[str, Any], source: Source, images: tuple[tuple[int, Source], ...] = ()
    ) -> None:
        self.__name__ = name
        self.source = source
        self.images = images
        self._members = dict(members)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only. copy and pickle call it before __init__ has run.
        members = vars(self).get("_members", {})
        if name in members:
            return members[name]
        raise AttributeError(f"{vars(self).get('__name__', 'module')!r} has no {name!r}; it has {', '.join(members)}")

    def __dir__(self) -> list[str]:
        return sorted((*self._members, "source", "images", "__name__"))

    def __repr__(self) -> str:
        return f"<kernel module {self.__name__!r} from {self.source}>"
