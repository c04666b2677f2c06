"""The host library of all families as the product builds it, and its objects, from the build cache of the user.

The first test that asks compiles what is missing there; builds of one family and of wheels use the same objects.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import catalogue, flags, host, toolchain
from precast._builder.cache import Cache, default_root


@functools.cache
def plan(machine: str = platform.machine()) -> host.Plan:
    """What is compiled for a machine, by which compiler."""
    compiler, looked_at = toolchain.find_compiler(Settings.from_env(os.environ), machine)
    assert compiler is not None, looked_at
    return host.make_plan(catalogue.FAMILIES, compiler, debug=False, levels=flags.cpu_levels(machine), machine=machine)


@functools.cache
def built(machine: str = platform.machine()) -> tuple[Path, dict[str, Path]]:
    """The library for a machine, and its objects by the names of the plan's units."""
    settings, planned, (ninja, _) = Settings.from_env(os.environ), plan(machine), toolchain.find_ninja()
    assert ninja is not None
    cache, jobs = Cache(default_root(settings)), toolchain.default_jobs(settings)
    library = host.build_host_library(
        catalogue.FAMILIES, planned.compiler, cache=cache, debug=False, jobs=jobs, ninja=ninja, machine=machine
    )
    found = {unit.name: cache.lookup(key) for unit, key in planned.units}
    assert None not in found.values(), found
    return library.path, {name: path for name, path in found.items() if path is not None}
