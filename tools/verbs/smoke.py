"""Install wheels into a fresh environment each, and run one op from their prebuilt files beside a torch.

The torch is the one of this environment, or the one that --torch names; what pip installs for that is kept in the build
cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder.cache import Cache, default_root
from precast.core.version import Release, TorchVersion
from precast.errors import KernelError
from tools.shared import packages
from tools.shared.platform_tag import PlatformTag

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "tools" / "smoke_check.py"
PINS = ROOT / "constraints.txt"


class SmokeFailed(KernelError):
    """A wheel does not work in a fresh environment."""


def smoke(wheel: Path, torch_site: Path) -> str:
    """Install and run; return the last line that the check printed."""
    with tempfile.TemporaryDirectory(prefix="precast-smoke-") as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        _run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], folder)
        _run([sys.executable, "-m", "pip", "--python", str(python), *_INSTALL, str(wheel.absolute())], folder)
        (site,) = python.parents[1].glob("lib/python3*/site-packages")
        (site / "torch.pth").write_text(f"{torch_site}\n", encoding="utf-8")
        return _run([str(python), str(CHECK)], folder).strip().splitlines()[-1]


def torch_site(version: str | None, index: str | None, cache: Cache) -> Path:
    """The folder to import torch from; without a version, that of this environment, if it has torch."""
    if version is None:
        spec = importlib.util.find_spec("torch")
        for place in () if spec is None else (spec.submodule_search_locations or ()):
            return Path(place).parent
        version = pinned_torch()
    options = () if index is None else ("--extra-index-url", index)
    return packages.environment(("--pre", "torch") if version == "nightly" else (f"torch=={version}",), cache, options)


def torch_in(site: Path) -> TorchVersion:
    """The version of the torch in a folder, from its metadata."""
    found = [found.version for found in distributions(name="torch", path=[str(site)])]
    if len(found) != 1:
        raise SmokeFailed(f"{site}: needed one torch, found {len(found)}")
    return TorchVersion.parse(found[0])


def why_not(only: Release, torch: TorchVersion) -> str | None:
    """Why a slim wheel cannot be tried with this torch, or None: it accepts only one minor release of torch."""
    if torch.release == only:
        return None
    return f"it is for torch {only} and this is torch {torch}; python -m tools smoke WHEEL --torch {only}.0 tries it"


def runs_here(wheel: Path) -> bool:
    """Whether this machine can load the wheel's libraries."""
    return PlatformTag.parse(wheel.stem.rpartition("-")[2].split(".")[-1]).machine == platform.machine()


_INSTALL = ("install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check")


def pinned_torch() -> str:
    """The torch of constraints.txt."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


def _run(command: list[str], folder: str) -> str:
    """Run outside the checkout and without its settings; an error shows the whole output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTHON"))}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SmokeFailed(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Try each wheel named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools smoke", description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="+")
    parser.add_argument("--torch", help="the version of torch beside it, or nightly")
    parser.add_argument("--index", help="where pip looks for that torch, beside its own index")
    options = parser.parse_args(arguments)
    try:
        cache = Cache(default_root(Settings.from_env(os.environ)))
        site = torch_site(options.torch, options.index, cache)
        for wheel in options.wheel:
            print(f"{wheel.name}: {smoke(wheel, site)}", flush=True)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
