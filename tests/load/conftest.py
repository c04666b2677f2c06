"""Installations of the package in folders of their own, and child processes that use them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from precast._builder import catalogue, descriptions
from precast.core import files
from tests.kit import fakes, forked

CHECKOUT = Path(__file__).resolve().parents[2]
INDEX = "https://host/precast"  # nobody asks it: tests/faults/fixes.py has one that answers
STEERING = ("PRECAST_", "TORCH_CUDA_ARCH_LIST", "CUDA_EXT", "CXX", "XDG_CACHE_HOME", "PYTHONPATH")


@dataclass(frozen=True)
class Site:
    """A folder with ``precast`` in it, a home, and a build cache."""

    folder: Path
    home: Path
    cache: Path
    env: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable
    forks: bool = True  # processes that have imported torch already

    @property
    def anew(self) -> Site:
        """The same for tests of what an import brings: each process begins with nothing."""
        return dataclasses.replace(self, forks=False)

    @property
    def c_dir(self) -> Path:
        return self.folder / "precast" / "_C"

    @property
    def library(self) -> Path:
        """The prebuilt host library."""
        (path,) = (self.c_dir / "host").glob("*.so")
        return path

    def run(
        self, code: str, *, env: dict[str, str] | None = None, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs code in a fresh process that sees this installation; the caller judges its status."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
        steering = {
            "PYTHONPATH": str(self.folder),
            "HOME": str(self.home),
            "PRECAST_CACHE_DIR": str(self.cache),
            "PRECAST_INDEX_URL": INDEX,
            "MAX_JOBS": "2",
        }
        variables = inherited | steering | self.env | (env or {})
        code, cwd, options = textwrap.dedent(code), self.home, ("-W", "error", *options)
        if self.forks and self.python == sys.executable and len(options) == 2:
            return forked.run(code, env=variables, cwd=cwd, options=options)
        return forked.run_anew(code, env=variables, cwd=cwd, options=options, python=self.python)

    def ok(self, code: str, *, env: dict[str, str] | None = None) -> str:
        """What the code printed on stdout; it must succeed."""
        done = self.run(code, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refusal(self, code: str, *, env: dict[str, str] | None = None) -> str:
        """The text of the KernelError that the code must raise, after its class."""
        body = textwrap.indent(textwrap.dedent(code).strip(), "    ")
        return self.ok(
            "from precast.errors import KernelError\n"
            f"try:\n{body}\n"
            "except KernelError as error:\n    print(type(error).__name__ + ': ' + str(error))\n"
            "else:\n    raise AssertionError('nothing was refused')\n",
            env=env,
        )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A checkout-like installation in whose cache the host library of cpu_adam has been built."""
    site = make_site(tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("cache"))
    site.ok("import precast; print(precast.load('adam_'))")
    return site


@pytest.fixture
def bare(tmp_path: Path) -> Site:
    """An installation with nothing prebuilt, an empty cache, and no sources to build from."""
    return make_site(tmp_path, tmp_path / "cache", sources=False)


@pytest.fixture
def pure(tmp_path: Path) -> Site:
    """An installation with nothing prebuilt, and an empty cache."""
    return make_site(tmp_path, tmp_path / "cache")


@pytest.fixture
def cold(built: Site, tmp_path: Path) -> Site:
    """An installation in whose cache only the link of cpu_adam is missing."""
    site = make_site(tmp_path, tmp_path / "cache")
    shutil.copytree(built.cache, site.cache, ignore=shutil.ignore_patterns(".*", "cpu_adam"))
    return site


@pytest.fixture
def wheel(built: Site, tmp_path: Path) -> Site:
    """An installation with a prebuilt host library of cpu_adam; a JIT finds it in the cache as well."""
    site = make_site(tmp_path, built.cache)
    (library,) = built.cache.glob("v1/cpu_adam/*/cpu_adam.so")
    fakes.write_installation(site.c_dir, library, families=("cpu_adam",))
    return site


def make_site(folder: Path, cache: Path, *, sources: bool = True) -> Site:
    site = Site(folder / "site", folder / "home", cache)
    site.home.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.cubin", "*.ptx", "build_info.json")
    shutil.copytree(CHECKOUT / "pkg" / "precast", site.folder / "precast", ignore=ignored)
    gathered = site.folder / "precast" / "_builder" / catalogue.GATHERED.name  # as a wheel has it
    gathered.write_text(descriptions.gathered(CHECKOUT / "csrc"))
    if sources:
        kept_out = shutil.ignore_patterns("torch_stable")
        shutil.copytree(CHECKOUT / "csrc", site.folder / "precast" / "csrc", ignore=kept_out)
        (site.folder / "precast" / "csrc" / files.DIGEST).write_text(fakes.sources_digest())  # as a wheel has it
    return site
