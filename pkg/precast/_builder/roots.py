"""Which caches there are: the one that is written, and the read-only ones that are searched first."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from precast._abi.settings import LINE_BREAKS, Settings
from precast._builder import elsewhere, trust
from precast.errors import KernelError

LOG = logging.getLogger("precast")


def search_path(settings: Settings) -> tuple[Path, ...]:
    """The caches of PRECAST_CACHE_PATH, in its order: filled by somebody else, never written here."""
    named = (settings.cache_path or "").split(os.pathsep)
    return tuple(_named("PRECAST_CACHE_PATH", name) for name in named if name)


def default_root(settings: Settings) -> Path:
    """Where builds go: PRECAST_CACHE_DIR, else XDG_CACHE_HOME, else ~/.cache, else a private folder in the temp dir.

    What the user named is taken as it is, even if it cannot be written: the error then says so. The others are taken
    only if they can be. Only the last resort makes a folder, because its owner and mode must be proved.
    """
    planned = planned_root(settings)
    if planned is not None:
        return planned
    fallback = trust.private_folder(Path(tempfile.gettempdir()) / f"precast-{os.getuid()}")
    LOG.warning("builds are kept in %s, as %s", fallback, _why_not(_homes(settings)))
    return fallback


def planned_root(settings: Settings) -> Path | None:
    """The same without the last resort, for who only looks: None where builds go there."""
    if settings.cache_dir:
        return _named("PRECAST_CACHE_DIR", settings.cache_dir)
    places = (home / "precast" for home in _homes(settings) if home.is_absolute())
    return next(filter(_can_hold, places), None)


def _homes(settings: Settings) -> list[Path]:
    homes = [Path(settings.xdg_cache_home)] if settings.xdg_cache_home else []
    return [*homes, Path(settings.home) / ".cache"] if settings.home else homes


def _named(variable: str, name: str) -> Path:
    """The folder a user named. A tilde that belongs to no user is part of the name, as it is for a shell."""
    try:
        return Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 - expanduser of pathlib raises RuntimeError
    except FileNotFoundError as error:  # the current directory was deleted
        raise KernelError(
            f"{variable}={name} names no folder\n"
            f"  found   {error}\n"
            f"  needed  a folder from / on\n"
            f"  fix     1) {elsewhere.setting(Path(name), variable)}"
        ) from error


def _can_hold(path: Path) -> bool:
    """Whether ``path`` is, or could be made, a folder that this user can write; ninja cannot write a line break."""
    if any(character in str(path) for character in LINE_BREAKS):
        return False
    try:
        there = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    except OSError:  # a name that is too long for any folder
        return False
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _why_not(homes: list[Path]) -> str:
    return f"{' and '.join(map(str, homes))} cannot be written" if homes else "neither XDG_CACHE_HOME nor HOME is set"
