"""How packages are installed here, and where this copy of precast came from, for the fixes in errors.

Used only for errors. Nothing here raises; a command that cannot be determined is not offered.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import sys
from pathlib import Path

from precast._abi import fixes
from precast._abi.settings import Settings
from precast.core import pip
from precast.core.host import Installer

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
    sources, wheel = pip.origin("precast", PACKAGE)
    try:
        version = importlib.metadata.version("precast")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return Installer(pip.install_command(), compiler_command(), sources, wheel, version)


def restore_command() -> str:
    """The command that reinstalls this precast from its origin; empty if the origin is unknown."""
    return fixes.restore(find(), Settings.from_env(os.environ, at_run=True).index_url)


def compiler_command() -> str:
    """The command that installs g++, as root if necessary, or from conda. Empty without a known package manager."""
    conda = Path(sys.prefix, "conda-meta").is_dir() and shutil.which("conda")
    if conda:
        return f"conda install -y -p {shlex.quote(sys.prefix)} -c conda-forge gxx"
    sudo = "sudo " if os.geteuid() != 0 else ""
    known = (name for name in _MANAGERS if shutil.which(name) or shutil.which(name, path=os.defpath))
    return next((_MANAGERS[name].format(sudo) for name in known), "")
