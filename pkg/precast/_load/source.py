"""The origin of a loaded kernel: the values that ``precast.load`` returns and ``.source`` shows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from precast.core.value import value

Kind = Literal["prebuilt", "cache", "jit", "torch", "package"]


@value(frozen=True)
class Source:
    """One file and its origin: prebuilt, from the build cache, built by this process, or from another provider."""

    kind: Kind
    path: Path
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path} ({self.detail})"


@value(frozen=True)
class Loaded:
    """One family on one device type: its host library, the device code of each GPU, and the load time in seconds.

    ``torch`` names the provider of torch's functions: torch itself, or an adapter. None for kernels of other packages.
    """

    family: str
    device: str
    host: Source
    images: tuple[tuple[int, Source], ...]
    seconds: float
    torch: Source | None = None
