"""Compiles an extension's device code through NVRTC and the cache: sources with includes, defines and instances."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import closure, device, flags, nvrtc, toolchain
from precast._builder.cache import Artifact, BuildKey
from precast._cubin import images
from precast._load import jit
from precast._load.progress import Progress
from precast._load.source import Source
from precast.core import pip
from precast.core.capability import GpuTarget
from precast.core.host import Nvrtc
from precast.core.version import CudaVersion
from precast.errors import BuildFailed, KernelUnavailable


@dataclasses.dataclass(frozen=True, slots=True)
class Programs:
    """The input of a build. Each source is a separate program; all have the same folders, defines and flags."""

    name: str
    sources: tuple[str, ...]
    include_dirs: tuple[str, ...]
    defines: Mapping[str, str]
    instances: Mapping[str, tuple[str, ...]]  # by the file name of the source
    flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """One image, and the cache file that contains it."""

    image: images.Image
    source: Source
    key: str


def build(
    programs: Programs, targets: Sequence[GpuTarget], compiler: Nvrtc, settings: Settings, why: str
) -> list[Built]:
    """Every source for every target. Cache misses are compiled in parallel."""
    _assert_sources(programs)
    unknown = [str(target) for target in targets if target.capability not in compiler.targets]
    if unknown:
        known = " ".join(map(str, compiler.targets))
        raise KernelUnavailable(
            f"{programs.name} cannot be built for {', '.join(unknown)}",
            found=f"NVRTC {compiler.version} ({compiler.path}), which knows {known}",
            needed=f"an NVRTC that knows {', '.join(unknown)}",
            fix=f"{pip.install_command()} -U nvidia-cuda-nvrtc",
        )
    calls = [_call(programs, source, target, compiler, settings) for target in targets for source in programs.sources]
    what = f"the device code of {programs.name} for {' '.join(map(str, targets))}"
    with Progress(what, f"NVRTC {compiler.version}", why, quiet=settings.quiet) as said:
        cache = jit.AnnouncingCache(settings, said.start, libraries=False)
        artifacts = device.obtain(calls, compiler, cache, toolchain.default_jobs(settings))
        said.end(*artifacts)
    return [_built(artifact, compiler) for artifact in artifacts]


def make_key(programs: Programs, source: str, target: GpuTarget, compiler: Nvrtc, settings: Settings) -> BuildKey:
    """The key of one image, over all inputs of its build."""
    inputs = {
        "name": programs.name,
        "target": str(target),
        "nvrtc": compiler.version,
        "options": options(programs, target, settings),
        "defines": dict(programs.defines),
        "instances": list(programs.instances.get(Path(source).name, ())),
        "sources": closure.reachable((source,), programs.include_dirs, settings.cuda_home),
        **({"place": str(Path(source).resolve())} if settings.debug else {}),  # where a debugger reads it
    }
    return BuildKey.of(programs.name, "images", inputs)


def options(programs: Programs, target: GpuTarget, settings: Settings) -> list[str]:
    """The options of NVRTC without the header folders; ``-lineinfo`` in a debug build."""
    return [*flags.nvrtc_options(target, debug=settings.debug), "--ptxas-options=-v", *programs.flags]


def _call(programs: Programs, source: str, target: GpuTarget, compiler: Nvrtc, settings: Settings) -> device.Call:
    path = Path(source)
    what = f"{programs.name} for {target}"

    def file(done: nvrtc.Compiled) -> tuple[str, bytes]:
        entries = images.read_entries(done.ptx.decode("utf-8", "replace"), done.log, done.symbols)
        if not entries:
            raise BuildFailed(
                f"{what}: there is no entry point in {path.name}",
                found="a program without kernels",
                needed='an extern "C" __global__ function, or an instance of a template, named by instances()',
                fix='write extern "C" before __global__, or name an instance in instances()',
            )
        image = images.Image(path.stem, target, CudaVersion.parse(compiler.version), entries, done.image)
        return f"{path.stem}.{target}.images", images.pack([image])

    folders = (str(path.resolve().parent), *programs.include_dirs)
    return device.Call(
        key=make_key(programs, source, target, compiler, settings),
        what=what,
        shown=path.name,
        source=device.define_lines(programs.defines) + b"#line 1\n" + path.read_bytes(),
        name=str(path.resolve()) if settings.debug else path.name,
        headers={},
        options=(*options(programs, target, settings), *(f"--include-path={folder}" for folder in folders)),
        target=target,
        file=file,
        instances=programs.instances.get(path.name, ()),
    )


def _built(artifact: Artifact, compiler: Nvrtc) -> Built:
    (image,) = images.unpack(artifact.path.read_bytes(), str(artifact.path))
    return Built(
        image,
        Source("cache" if artifact.cached else "jit", artifact.path, f"{image.target}, NVRTC {compiler.version}"),
        artifact.key,
    )


def _assert_sources(programs: Programs) -> None:
    closure.assert_there(programs.name, programs.sources)
    names = [Path(source).name for source in programs.sources]
    strange = sorted(set(programs.instances) - set(names))
    if strange or len(set(names)) != len(names):
        raise KernelUnavailable(
            f"{programs.name} cannot be built: its sources or instances are not valid",
            found=f"instances of {', '.join(strange)}, and sources {', '.join(names)}"
            if strange
            else f"sources {', '.join(names)}, of which two have one name",
            needed="instances of these sources" if strange else "a different name for each source",
            fix="correct sources_files() and instances() of the extension",
        )
