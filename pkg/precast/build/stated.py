"""Reads which torch built the libraries of finished wheels (``--torch``), and drops libraries for too old torches."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from precast._builder import xray
from precast.core.torch_abi import CLASSIC_FLOOR
from precast.core.version import TorchVersion
from precast.errors import KernelError


@dataclass(frozen=True)
class Stated:
    """The torch that built each library, as the caller says: by a pattern of the library's path, else ``other``."""

    patterns: tuple[tuple[str, TorchVersion], ...] = ()
    other: TorchVersion | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Stated:
        """Read ``2.13.0+cu130``, at most once, and ``GLOB=2.13.0+cu130``. ValueError for anything else."""
        pairs = [(glob, TorchVersion.parse(version)) for glob, _, version in (text.rpartition("=") for text in texts)]
        other = [version for glob, version in pairs if not glob]
        if len(other) > 1:
            raise ValueError(
                f"--torch {other[0]} and {other[1]} for all libraries; needed --torch GLOB={other[1]} for some"
            )
        return cls(tuple(pair for pair in pairs if pair[0]), other[0] if other else None)

    def of(self, path: str) -> TorchVersion | None:
        """The torch that built the library at a path: that of the first pattern which takes it."""
        return next((version for glob, version in self.patterns if fnmatchcase(path, glob)), self.other)

    def told(self, contents: xray.Contents) -> xray.Contents:
        """The contents with the torch that patterns state. KernelError for a pattern that takes no library."""
        paths = [one.path for one in contents.libraries]
        for glob, version in self.patterns:
            if not any(fnmatchcase(path, glob) for path in paths):
                asked = f"--torch '{glob}={version}' matches no library of {contents.name}"
                raise KernelError(
                    asked,
                    found=", ".join(paths) or "no library in the wheel",
                    needed="a pattern that matches a whole path",
                    fix=f"repeat the command with --torch {shlex.quote(f'{paths[0]}={version}')}"
                    if paths
                    else "repeat the command without --torch",
                )
        by_path = replace(self, other=None)
        told = ((one, by_path.of(one.path)) for one in contents.libraries)
        libraries = (one if torch is None else replace(one, stated=torch.release) for one, torch in told)
        return replace(contents, libraries=tuple(libraries))


NOTHING = Stated()


def without_old(contents: xray.Contents) -> tuple[xray.Contents, tuple[xray.Library, ...]]:
    """The contents without libraries for a torch older than any that precast supports, if others have the same name.

    The package's own code opens the library for the running torch, so it needs no older one beside precast.
    """
    newer = {_name(one) for one in contents.libraries if one.needs_torch and not _is_old(one)}
    old = tuple(one for one in contents.libraries if _is_old(one) and _name(one) in newer)
    return replace(contents, libraries=tuple(one for one in contents.libraries if one not in old)), old


def is_classic(library: xray.Library) -> bool:
    """Whether the library is only known to fit the torch that built it."""
    return library.needs_torch and bool(library.bound.classic or not library.shims)


def _is_old(library: xray.Library) -> bool:
    return is_classic(library) and library.stated is not None and library.stated < CLASSIC_FLOOR


def _name(library: xray.Library) -> str:
    return PurePosixPath(library.path).name
