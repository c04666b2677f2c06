"""Build device code: one header-free NVRTC program per family and target, the same for a wheel and a JIT build."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from precast._abi.capability import GpuTarget, TargetKind
from precast._abi.host import Nvrtc
from precast._builder import elf, failure, flags, nvrtc, nvrtc_child, sources
from precast._builder.cache import Artifact, BuildKey, Cache
from precast._builder.catalogue import Family
from precast.errors import BuildFailed, KernelError


@dataclass(frozen=True, slots=True)
class Program:
    """A device source with everything it includes, under names without any path."""

    family: str
    name: str
    source: bytes
    headers: Mapping[str, bytes]  # the name in an #include -> the content of the header
    digests: Mapping[str, str]
    path: Path
    folders: tuple[Path, ...]  # where NVRTC itself searches if no headers are passed


def read_program(family: Family, csrc: Path | None = None) -> Program:
    """The program of a family; KernelError if it has no device code."""
    if family.device is None:
        raise KernelError(f"kernel family {family.name!r} has no device code to build")
    root = sources.csrc_dir() if csrc is None else csrc
    tree = sources.Tree({"csrc": root})
    files = tree.reachable([f"csrc/{family.device}"])
    by_name = {file.name: file for file in files}
    headers: dict[str, bytes] = {}
    for file in files:
        for spelled in sources.INCLUDE.findall(file.data):
            text = spelled.decode("utf-8", "replace")
            target = tree.resolve(file.name, text)
            if target is None:
                raise KernelError(
                    f"{file.name} includes {text!r}, which NVRTC has not",
                    found=f"no such file next to it or in {root}",
                    needed="device code that includes files of csrc only",
                )
            if headers.setdefault(text, by_name[target].data) != by_name[target].data:
                raise KernelError(f"{file.name}: {text!r} means two files in one program; name one of them otherwise")
    main = by_name[f"csrc/{family.device}"]
    digests = {file.name: file.sha256 for file in files}
    return Program(family.name, main.name, main.data, headers, digests, main.path, (root,))


def read_source(name: str, source: Path, folders: Sequence[Path] = ()) -> Program:
    """The program of a user's file, whose includes lie next to it or in ``folders``; its key contains no path.

    NVRTC resolves all other includes, because they may stand under an ``#if`` that is never true.
    """
    roots = {"source": source.resolve().parent, **{f"include{i}": path.resolve() for i, path in enumerate(folders)}}
    files = sources.Tree(roots).reachable([f"source/{source.name}"])
    main = next(file for file in files if file.name == f"source/{source.name}")
    digests = {file.name: file.sha256 for file in files}
    return Program(name, main.name, main.data, {}, digests, main.path, tuple(roots.values()))


def define_lines(defines: Mapping[str, str]) -> bytes:
    """Parameters of a variant, as lines before the source: NVRTC's own header breaks on one-letter -D options."""
    for name, value in defines.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or "\n" in value:
            raise ValueError(f"not a definition: {name!r} = {value!r}")
    return "".join(f"#define {name} {value}\n" for name, value in sorted(defines.items())).encode()


def image_key(
    program: Program, target: GpuTarget, compiler: Nvrtc, *, debug: bool, defines: Mapping[str, str]
) -> BuildKey:
    """The inputs of one image. With debug they include the sources' place, because a debugger reads them there."""
    inputs = {
        "family": program.family,
        "target": str(target),
        "nvrtc": compiler.version,
        "options": list(flags.nvrtc_options(target, debug=debug)),
        "defines": dict(defines),
        "sources": dict(program.digests),
        **({"place": str(program.path)} if debug else {}),
    }
    return BuildKey.of(program.family, "device", inputs)


def file_name(family: str, target: GpuTarget) -> str:
    """``rms_norm.sm_90.cubin`` or ``rms_norm.compute_90.ptx``."""
    return f"{family}.{target}.{'ptx' if target.kind is TargetKind.PTX else 'cubin'}"


def build_images(
    family: Family | str,
    targets: Sequence[GpuTarget],
    compiler: Nvrtc,
    *,
    cache: Cache,
    debug: bool,
    jobs: int,
    defines: Mapping[str, str] | None = None,
) -> tuple[Artifact, ...]:
    """One verified image per target, in the order of ``targets``; cache misses are compiled in parallel."""
    from precast._builder import catalogue

    program = read_program(catalogue.get(family) if isinstance(family, str) else family)
    return build_program(program, targets, compiler, cache=cache, debug=debug, jobs=jobs, defines=defines)


def build_program(
    program: Program,
    targets: Sequence[GpuTarget],
    compiler: Nvrtc,
    *,
    cache: Cache,
    debug: bool,
    jobs: int,
    defines: Mapping[str, str] | None = None,
) -> tuple[Artifact, ...]:
    """Like :func:`build_images`, for any program."""
    opened: list[
        nvrtc.Compiler | nvrtc_child.Isolated
    ] = []  # shared by all threads; stays empty if everything is cached

    def one(target: GpuTarget) -> Artifact:
        key = image_key(program, target, compiler, debug=debug, defines=defines or {})

        def build(staging: Path) -> Path:
            if not opened:
                opened.append(nvrtc_child.open_nvrtc(compiler))
            return _compile(opened[0], program, target, compiler, staging, cache.failure_log(key), debug, defines or {})

        return cache.obtain(key, build)

    with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(targets) or 1))) as pool:
        return tuple(pool.map(one, targets))


def _compile(
    opened: nvrtc.Compiler | nvrtc_child.Isolated,
    program: Program,
    target: GpuTarget,
    compiler: Nvrtc,
    staging: Path,
    log_file: Path,
    debug: bool,
    defines: Mapping[str, str],
) -> Path:
    options = flags.nvrtc_options(target, debug=debug)
    command = f"NVRTC {compiler.version} ({compiler.path}) {program.name} {' '.join(options)}"
    source = program.source if not defines else define_lines(defines) + b"#line 1\n" + program.source
    ptx = target.kind is TargetKind.PTX
    name, headers = (str(program.path), {}) if debug else (program.name, program.headers)
    searched = () if headers else tuple(f"--include-path={folder}" for folder in program.folders)
    done = opened.compile(source, name, headers, (*options, *searched), ptx=ptx)
    if done.error is not None:
        what, tool = f"{program.family} for {target}", f"NVRTC {compiler.version}"
        raise failure.build_failed(what, done.log or done.error, command, log_file, tool=tool)
    _check(done.image, target, program.family)
    (staging / "build.log").write_text(f"{command}\n\n{done.log}", encoding="utf-8")
    payload = staging / file_name(program.family, target)
    payload.write_bytes(done.image)
    return payload


def _check(image: bytes, target: GpuTarget, family: str) -> None:
    """Check that an image is for its target before it is published."""
    if target.kind is TargetKind.PTX:
        found = re.search(rb"^\.target\s+(\w+)", image, re.MULTILINE)
        named = found[1].decode() if found else "nothing"
    else:
        try:
            named = str(elf.read_cubin(image).target)
        except elf.ElfError as error:
            raise BuildFailed(f"{family} for {target}: NVRTC gave no usable cubin: {error}") from error
    # A cubin's header may omit the suffix but must have the number.
    wanted = f"sm_{target.capability.number}"
    if named not in {wanted, wanted + target.suffix}:
        raise BuildFailed(f"{family} for {target}: NVRTC gave code for {named}")
