"""The folders of the build caches: the one that is written, and the read-only ones that are searched first."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from precast._abi.settings import LINE_BREAKS, Settings
from precast._builder import trust
from precast.core import files
from precast.errors import KernelError

LOG = logging.getLogger("precast")


def search_path(settings: Settings) -> tuple[Path, ...]:
    """The caches of PRECAST_CACHE_PATH, in its order; other users fill them, and they are never written here."""
    named = (settings.cache_path or "").split(os.pathsep)
    return tuple(_named("PRECAST_CACHE_PATH", name) for name in named if name)


def default_root(settings: Settings) -> Path:
    """The folder for builds: PRECAST_CACHE_DIR, XDG_CACHE_HOME, ~/.cache, or a private folder in the temp directory.

    PRECAST_CACHE_DIR is used even if it cannot be written; the error then says so. The others are used only if they
    are writable. Only the last resort is created here, because its owner and mode must be checked.
    """
    planned = planned_root(settings)
    if planned is not None:
        return planned
    fallback = trust.private_folder(Path(tempfile.gettempdir()) / f"precast-{os.getuid()}")
    LOG.warning("builds are kept in %s, as %s", fallback, _why_not(_homes(settings)))
    return fallback


def planned_root(settings: Settings) -> Path | None:
    """Like ``default_root`` but without the last resort, for read-only callers: None if builds would go there."""
    if settings.cache_dir:
        return _named("PRECAST_CACHE_DIR", settings.cache_dir)
    places = (home / "precast" for home in _homes(settings) if home.is_absolute())
    return next(filter(_can_hold, places), None)


def _homes(settings: Settings) -> list[Path]:
    homes = [Path(settings.xdg_cache_home)] if settings.xdg_cache_home else []
    return [*homes, Path(settings.home) / ".cache"] if settings.home else homes


def _named(variable: str, name: str) -> Path:
    """The folder that a user named. As in a shell, a tilde stays if it matches no user."""
    try:
        return Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 - expanduser of pathlib raises RuntimeError
    except FileNotFoundError as error:  # the current directory is gone
        raise KernelError(
            f"{variable}={name} is not a folder",
            found="a relative path, and a deleted current directory",
            needed="an absolute path",
            fix=trust.another(Path(name), variable),
        ) from error


def _can_hold(path: Path) -> bool:
    """Whether ``path`` is, or could become, a folder that this user can write, and load libraries from.

    ninja cannot write a line break.
    """
    if any(character in str(path) for character in LINE_BREAKS):
        return False
    try:
        there = _existing(path)
    except OSError:  # the name is too long
        return False
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK) and not files.is_noexec(there)


def _existing(path: Path) -> Path:
    return next((folder for folder in (path, *path.parents) if folder.exists()), path)


def _why_not(homes: list[Path]) -> str:
    if not homes:
        return "neither XDG_CACHE_HOME nor HOME is set"
    noexec = [home for home in homes if files.is_noexec(home) or files.is_noexec(home.parent)]
    what = "is on a file system that is mounted noexec" if noexec else "cannot be written"
    return f"{' and '.join(map(str, noexec or homes))} {what}"
