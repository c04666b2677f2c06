"""Build at run time a piece for which no prebuilt file fits, and report the progress."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precast._abi.decision import BuildAdapter
from precast._abi.settings import Settings
from precast._builder.cache import Artifact, BuildKey, Cache, default_root
from precast._builder.entry import LOG_NAME
from precast._builder.roots import search_path
from precast._load import unopened
from precast._load.progress import Progress
from precast._load.source import Source
from precast.core.capability import GpuTarget
from precast.core.host import Builders, Compiler

if TYPE_CHECKING:
    from precast._builder.flags import CpuLevel


def build_host(family: str, builders: Builders, settings: Settings, why: str) -> Source:
    """Build the host library of one family."""
    from precast._builder import host, toolchain

    compiler, ninja = _tools(family, builders)
    with_what = f"{Path(compiler.path).name} {compiler.version}"
    with Progress(f"the host library of {family}", with_what, why, quiet=settings.quiet) as said:
        artifact = host.build_host_library(
            (family,),
            compiler,
            cache=AnnouncingCache(settings, said.start),
            debug=settings.debug,
            jobs=toolchain.default_jobs(settings),
            ninja=ninja,
            levels=levels_to_build(settings),
        )
        said.end(artifact)
    return _source(artifact, with_what)


def build_adapter(piece: BuildAdapter, builders: Builders, settings: Settings, why: str) -> Source:
    """Build the adapter to the torch of this process: one source, whatever family is loaded."""
    from precast._builder import host, toolchain

    what = f"the adapter to torch {piece.abi.release}"
    compiler, ninja = _tools(what, builders)
    with_what = f"{Path(compiler.path).name} {compiler.version}"
    with Progress(what, with_what, why, quiet=settings.quiet) as said:
        artifact = host.build_adapter(
            piece.abi,
            compiler,
            cache=AnnouncingCache(settings, said.start),
            debug=settings.debug,
            jobs=toolchain.default_jobs(settings),
            ninja=ninja,
        )
        said.end(artifact)
    return _source(artifact, f"{piece.abi}, {with_what}")


def _tools(what: str, builders: Builders) -> tuple[Compiler, str]:
    compiler, ninja = builders.compiler, builders.ninja
    if compiler is None or ninja is None:  # decide() refuses this case
        raise AssertionError(f"a build of {what} was decided without a compiler or ninja: {builders}")
    return compiler, ninja


def levels_to_build(settings: Settings) -> tuple[CpuLevel, ...]:
    """The one CPU level that this machine uses. It is part of the key, so different machines can share a cache."""
    from precast._builder import flags
    from precast.core import probe

    machine, features = platform.machine(), probe.cpu_features()
    if settings.cpu_level is not None:
        return (flags.named_level(machine, features, settings.cpu_level),)
    return (flags.best_level(machine, features),)


def build_images(
    family: str, targets: Sequence[GpuTarget], builders: Builders, settings: Settings, why: str
) -> Mapping[GpuTarget, Source]:
    """Build the device code of one family, one image per target, compiled in parallel."""
    from precast._builder import device, toolchain

    nvrtc = builders.nvrtc
    if nvrtc is None:  # decide() refuses this case
        raise AssertionError(f"a device build of {family} was decided without NVRTC: {builders}")
    names = " ".join(str(target) for target in targets)
    what = f"the device code of {family} for {names}"
    with Progress(what, f"NVRTC {nvrtc.version}", why, quiet=settings.quiet) as said:
        artifacts = device.build_images(
            family,
            tuple(targets),
            nvrtc,
            cache=AnnouncingCache(settings, said.start, libraries=False),
            debug=settings.debug,
            jobs=toolchain.default_jobs(settings),
        )
        said.end(*artifacts)
    made = zip(targets, artifacts, strict=True)
    return {target: _source(artifact, f"{target}, NVRTC {nvrtc.version}") for target, artifact in made}


class AnnouncingCache(Cache):
    """A cache that announces when it has to build, with the path of the log.

    ``libraries``: the dynamic linker opens what is built, so a file system without execution is refused before that.
    """

    def __init__(self, settings: Settings, announce: Callable[[Path], None], *, libraries: bool = True) -> None:
        super().__init__(default_root(settings), search=search_path(settings), wait_s=settings.jit_wait_s)
        self._announce, self._libraries = announce, libraries

    def obtain(self, key: BuildKey, build: Callable[[Path], Path]) -> Artifact:
        def announced(staging: Path) -> Path:
            if self._libraries:
                unopened.refuse_noexec(staging)
            self._announce(staging / LOG_NAME)
            return build(staging)

        return super().obtain(key, announced)


def _source(artifact: Artifact, detail: str) -> Source:
    return Source("cache" if artifact.cached else "jit", artifact.path, detail)
