"""Which caches there are: the one that is written, and the read-only ones that are searched first."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from precast._abi.settings import Settings
from precast._build import trust

LOG = logging.getLogger("precast")


def search_path(settings: Settings) -> tuple[Path, ...]:
    """The caches of PRECAST_CACHE_PATH, in its order: filled by somebody else, never written here."""
    named = (settings.cache_path or "").split(os.pathsep)
    return tuple(Path(name).expanduser().absolute() for name in named if name)


def default_root(settings: Settings) -> Path:
    """Where builds go: PRECAST_CACHE_DIR, else XDG_CACHE_HOME, else ~/.cache, else a private folder in the temp dir.

    What the user named is taken as it is, even if it cannot be written: the error then says so. The others are taken
    only if they can be. Only the last resort makes a folder, because its owner and mode must be proved.
    """
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    homes = [Path(settings.xdg_cache_home)] if settings.xdg_cache_home else []
    if settings.home:
        homes.append(Path(settings.home) / ".cache")
    for home in homes:
        if home.is_absolute() and _can_hold(home / "precast"):
            return home / "precast"
    fallback = trust.private_folder(Path(tempfile.gettempdir()) / f"precast-{os.getuid()}")
    LOG.warning("builds are kept in %s, as %s", fallback, _why_not(homes))
    return fallback


def _can_hold(path: Path) -> bool:
    """Whether ``path`` is, or could be made, a folder that this user can write."""
    for folder in (path, *path.parents):
        if folder.exists():
            return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


def _why_not(homes: list[Path]) -> str:
    return f"{' and '.join(map(str, homes))} cannot be written" if homes else "neither XDG_CACHE_HOME nor HOME is set"
