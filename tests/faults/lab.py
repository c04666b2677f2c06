"""What a fault is, the list of all of them, and the place where they are tried: installations, faulty file systems."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kit import fakes, spawn
from tests.load.conftest import Site, make_site

SHIM = Path(__file__).with_name("shim.cpp")
LOAD = "import precast; print(precast.load('adam_').host.kind)"
# The same build as that of LOAD, into the same entry, but without torch, which takes two seconds to import.
BUILD = """
from precast._load import jit, probe
settings = probe.read_settings()
builders = probe.probe_builders(settings)
made = jit.build_host("cpu_adam", builders, settings, "for the table of faults")
print(made.kind)
"""
STEP = """
import sys, torch, precast
from precast.ops import adam_
weight, grad, first, second = torch.ones(100), torch.ones(100), torch.zeros(100), torch.zeros(100)
beta1, beta2 = 0.9, 0.999
adam_([weight], [grad], [first], [second], lr=0.5, beta1=beta1, beta2=beta2, eps=1e-8, weight_decay=0.0,
      bias_correction1=1 - beta1, bias_correction2=1 - beta2)
assert torch.allclose(weight, torch.full((100,), 0.5)), weight
print(precast.load("adam_").host.kind)
"""


class NotRun(Exception):
    """This machine cannot inject the fault; the text says what it lacks."""


@dataclass(frozen=True)
class Fault:
    """One row: ``inject`` does it, checks what must hold afterwards, and returns what the user saw."""

    id: str
    what: str
    how: str
    lost: str
    inject: Callable[[Lab], str]
    slow: bool  # only in `make faults`


FAULTS: list[Fault] = []


def fault(
    ident: str, what: str, *, how: str, lost: str = "nothing", slow: bool = False
) -> Callable[[Callable[[Lab], str]], Callable[[Lab], str]]:
    """Puts a function into the table."""

    def register(inject: Callable[[Lab], str]) -> Callable[[Lab], str]:
        assert ident not in {row.id for row in FAULTS}, f"{ident} comes twice"
        FAULTS.append(Fault(ident, what, how, lost, inject, slow))
        return inject

    return register


class Lab:
    """A folder to try faults in. ``seed`` is a cache with one finished build, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites: list[Site] = []  # what the rows have made so far
        self.env: dict[str, str] = {}  # the faults around them
        self._count = itertools.count()

    @functools.cached_property
    def seed(self) -> Path:
        site = self.site(warm="nothing")
        assert site.ok(BUILD) == "jit\n"
        return site.cache

    @functools.cached_property
    def shim(self) -> Path:
        return spawn.library(self.folder / "shim.so", SHIM, "-O1", "-Wno-nonnull-compare", "-ldl")

    @functools.cached_property
    def driver(self) -> Path:
        """A folder with libraries that answer like a driver with the GPUs of the variable GPUS."""
        folder = self.folder / "driver"
        folder.mkdir()
        spawn.library(folder / "libnvidia-ml.so.1", fakes.NVML)
        spawn.library(folder / "libcuda.so.1", fakes.LIBCUDA)
        return folder

    def gpus(self, *capabilities: str) -> dict[str, str]:
        """The environment of a machine with these GPUs and nothing that compiles for them."""
        listed = " ".join(f"{capability}/GPU-{index}aaa/0" for index, capability in enumerate(capabilities))
        env = {"LD_LIBRARY_PATH": str(self.driver), "GPUS": listed, "DRIVER": "13000", "CUDA_HOME": "/nonexistent"}
        self.env |= env
        return env

    def site(self, *, warm: str = "objects") -> Site:
        """An installation; ``warm`` says what its cache holds: "nothing", "objects" (only a link is missing), "all"."""
        folder = self.folder / f"{next(self._count)}"
        folder.mkdir(parents=True)
        site = make_site(folder, folder / "cache")
        self.sites.append(site)
        if warm != "nothing":
            kept = [".*"] if warm == "all" else [".*", "cpu_adam"]
            shutil.copytree(self.seed, site.cache, ignore=shutil.ignore_patterns(*kept))
            site.cache.chmod(0o700)
        return site

    def wheel(self, device: dict[str, bytes] | None = None, *, library: Site | None = None) -> Site:
        """An installation with a prebuilt library and device code, and an empty cache without sources to fill it.

        The library is the one that a site has built; by default that of the seed.
        """
        folder = self.folder / f"{next(self._count)}"
        folder.mkdir(parents=True)
        site = make_site(folder, folder / "cache", sources=False)
        self.sites.append(site)
        (path,) = (library.cache if library else self.seed).glob("v1/cpu_adam/*/cpu_adam.so")
        fakes.write_installation(site.c_dir, path, device, families=("cpu_adam", "rms_norm"))
        return site

    def faulty(self, root: Path, **faults: str) -> dict[str, str]:
        """The environment in which the file system under ``root`` has these faults."""
        named = {f"FAULT_{name.upper()}": value for name, value in faults.items()}
        env = {"LD_PRELOAD": str(self.shim), "FAULT_ROOT": str(root), **named}
        self.env |= env
        return env


def library(site: Site) -> Path:
    """The one library that a site has built."""
    (path,) = site.cache.glob("v1/cpu_adam/*/cpu_adam.so")
    return path


def debris(site: Site) -> list[str]:
    """What a build left half-made."""
    return sorted(path.name for path in (site.cache / "v1" / ".staging").glob("*"))


def line(text: str, *words: str) -> str:
    """The first line with all of the words: what the user saw."""
    for one in text.splitlines():
        if all(word in one for word in words):
            return " ".join(one.split())
    raise AssertionError(f"no line with {words} in:\n{text}")
