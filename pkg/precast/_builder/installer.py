"""How packages are installed here, and where this copy of precast came from, for the fixes in errors.

Used only for errors. Nothing here raises; a command that cannot be determined is not offered.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import shutil
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from precast._abi import remedy
from precast._abi.host import Installer
from precast._abi.settings import Settings
from precast._builder import python

PACKAGE = Path(__file__).resolve().parents[1]
# The command of each package manager for a C++ compiler. apt-get updates first, because images lack its package lists.
_MANAGERS = {
    "apt-get": "{0}apt-get update && {0}apt-get install -y g++",
    "dnf": "{0}dnf install -y gcc-c++",
    "yum": "{0}yum install -y gcc-c++",
    "zypper": "{0}zypper install -y gcc-c++",
    "pacman": "{0}pacman -Sy --noconfirm gcc",
}


def find() -> Installer:
    """All installer facts of this process's environment."""
    sources, wheel = origin("precast", PACKAGE)
    try:
        version = importlib.metadata.version("precast")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return Installer(install_command(), compiler_command(), sources, wheel, version)


def restore_command() -> str:
    """The command that reinstalls this precast from its origin; empty if the origin is unknown."""
    return remedy.restore(find(), Settings.from_env(os.environ, at_run=True).index_url)


def install_command() -> str:
    """``pip install`` if a shell would find this Python's pip by that name, otherwise a longer command."""
    if not python.interpreter():
        return "pip install"  # where the program was frozen
    scripts = {Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))}
    own = shlex.quote(sys.executable)
    if PathFinder.find_spec("pip") is not None:  # the finder of setuptools changes modules when it is asked about pip
        if _reached("pip", scripts):
            return "pip install"
        return f"{'python' if _reached('python', {Path(sys.executable).parent}) else own} -m pip install"
    if shutil.which("uv") is not None:
        return f"uv pip install --python {own}"
    return f"{own} -m ensurepip && {own} -m pip install"


def compiler_command() -> str:
    """The command that installs g++, as root if necessary, or from conda. Empty without a known package manager."""
    conda = Path(sys.prefix, "conda-meta").is_dir() and shutil.which("conda")
    if conda:
        return f"conda install -y -p {shlex.quote(sys.prefix)} -c conda-forge gxx"
    sudo = "sudo " if os.geteuid() != 0 else ""
    known = (name for name in _MANAGERS if shutil.which(name) or shutil.which(name, path=os.defpath))
    return next((_MANAGERS[name].format(sudo) for name in known), "")


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
