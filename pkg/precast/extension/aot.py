"""Builds a kernel family as an extension for a setup.py, which calls ``setup(ext_modules=[extension.build_aot()])``.

setuptools compiles every source of an extension with the same options, but a family compiles some sources once per CPU
level. So our own builder and its cache make the objects here, and setuptools links them.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import flags, host, toolchain
from precast._builder.cache import Cache, default_root
from precast._builder.catalogue import Family
from precast._load import probe, verdict
from precast.core.torch_abi import STABLE_FLOOR

if TYPE_CHECKING:
    from setuptools import Extension as SetuptoolsExtension


def build_extension(name: str, families: Sequence[Family]) -> SetuptoolsExtension:
    """Compiles the families and returns the extension that links them into ``name``, which needs nothing of torch."""
    settings = probe.read_settings(building=True)
    builders = probe.probe_builders(settings)
    if builders.compiler is None or builders.ninja is None:
        raise verdict.cannot_build(
            name, "a C++ compiler and ninja", builders.looked_at, verdict.missing_tools(builders, settings)
        )
    cache = Cache(default_root(settings))
    compiler, debug, jobs = builders.compiler, settings.debug, toolchain.default_jobs(settings)
    host.build_host_library(families, compiler, cache=cache, debug=debug, jobs=jobs, ninja=builders.ninja)
    plan = host.make_plan(families, compiler, debug=debug, levels=flags.cpu_levels(platform.machine()))
    objects = [(unit.name, cache.lookup(key)) for unit, key in plan.units]
    missing = [unit for unit, path in objects if path is None]
    if missing:
        places = tuple(f"{cache.root}: {unit}.o: not there" for unit in missing)
        raise verdict.cannot_build(
            name, "the objects that were just compiled", places, "build again, which compiles them again"
        )
    return link_extension(name, [str(path) for _, path in objects if path is not None])


def link_extension(name: str, objects: Sequence[str], **options: Any) -> SetuptoolsExtension:
    """A ``setuptools.Extension`` of existing objects, which ``build_ext`` only has to link, also that of torch.

    Torch's ``build_ext`` requires a source, so there is an empty source in the build folder of the setup.py. The define
    tells ``precast.build`` that the objects use nothing of torch beyond its stable ABI.
    """
    from setuptools import Extension as SetuptoolsExtension

    floor = ("TORCH_TARGET_VERSION", flags.torch_target_version(STABLE_FLOOR).partition("=")[2])
    source = Path("build", "precast", f"{name}.cpp")
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("// Its objects were compiled before.\n", encoding="utf-8")
    return SetuptoolsExtension(
        name, [str(source)], extra_objects=list(objects), define_macros=[floor], language="c++", **options
    )
