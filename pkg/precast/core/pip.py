"""How packages are installed here, and where pip got one from, for the fixes in errors.

Used only for errors. Nothing here raises; a command that cannot be determined is not offered.
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import shutil
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command() -> str:
    """``pip install`` if a shell would find this Python's pip by that name, otherwise a longer command."""
    if getattr(sys, "frozen", False):  # sys.executable is then the program itself
        return "pip install"
    scripts = {Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))}
    own = shlex.quote(sys.executable)
    if PathFinder.find_spec("pip") is not None:  # the finder of setuptools changes modules when it is asked about pip
        if _reached("pip", scripts):
            return "pip install"
        return f"{'python' if _reached('python', {Path(sys.executable).parent}) else own} -m pip install"
    if shutil.which("uv") is not None:
        return f"uv pip install --python {own}"
    return f"{own} -m ensurepip && {own} -m pip install"


def origin(distribution: str, package: Path) -> tuple[str | None, str | None]:
    """The sources that pip can build ``package`` from, and the wheel it came from, as pip recorded them (PEP 610).

    Both are quoted for a shell. Each is None if there is none, or if it does not exist.
    """
    checkout = package.parents[1]
    if package.parent.name == "pkg" and (checkout / "setup.py").is_file():
        return shlex.quote(str(checkout)), None
    facts = _recorded(distribution, package)
    url = str(facts.get("url", ""))
    if "vcs_info" in facts:
        at = facts["vcs_info"].get("commit_id")
        return shlex.quote(f"{facts['vcs_info'].get('vcs')}+{url}{'@' + at if at else ''}"), None
    if not url.startswith("file:"):
        place = url or None
    else:
        path = Path(unquote(urlsplit(url).path))
        place = str(path) if (path / "setup.py").is_file() or path.is_file() else None
    if place is None:
        return None, None
    quoted = shlex.quote(place)
    return (None, quoted) if place.endswith(".whl") else (quoted, None)


def _recorded(distribution: str, package: Path) -> dict[str, Any]:
    """The record of pip for the installation that this very package belongs to."""
    try:
        found = importlib.metadata.distribution(distribution)
        if Path(str(found.locate_file(package.name))).resolve() != package:
            return {}
        facts = json.loads(found.read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _reached(name: str, folders: set[Path]) -> bool:
    found = shutil.which(name)
    return found is not None and Path(found).parent in folders
