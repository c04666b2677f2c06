"""Build device code with NVRTC through the cache: for a wheel, at run time, and for an author's kernels alike.

A family is one program per target, which contains its headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from precast._builder import elf, failure, flags, nvrtc, nvrtc_child, sources
from precast._builder.cache import Artifact, BuildKey, Cache
from precast._builder.catalogue import Family
from precast.core.capability import GpuTarget, TargetKind
from precast.core.host import Nvrtc
from precast.errors import REPORT, BuildFailed, KernelError


@dataclass(frozen=True, slots=True)
class Program:
    """A device source with everything it includes, under names without any path."""

    family: str
    name: str
    source: bytes
    headers: Mapping[str, bytes]  # the name in an #include -> the content of the header
    digests: Mapping[str, str]
    path: Path
    root: Path  # where NVRTC itself searches if no headers are passed


@dataclass(frozen=True, slots=True)
class Call:
    """One call of NVRTC, and what the cache keeps of it: ``file`` gives a name and the content.

    ``ptx`` is the call for the PTX of the same target, if that is also wanted: this call fills its entry too.
    """

    key: BuildKey
    what: str
    shown: str  # the source in the log
    source: bytes
    name: str
    headers: Mapping[str, bytes]
    options: tuple[str, ...]
    target: GpuTarget
    file: Callable[[nvrtc.Compiled], tuple[str, bytes]]
    instances: tuple[str, ...] = ()
    ptx: Call | None = None


def read_program(family: Family, csrc: Path | None = None) -> Program:
    """The program of a family; KernelError if it has no device code."""
    if family.device is None:
        raise KernelError(
            f"kernel family {family.name!r} has no device code to build",
            found=f"kernels for {', '.join(family.devices)}",
            needed="a family with kernels for cuda",
            fix="precast list  # prints the devices of each family",
        )
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
                    f"{file.name} includes {text!r}, which NVRTC cannot find",
                    found=f"no such file next to {file.name} or in {root}",
                    needed="the file in one of these places",
                    fix="put the file into csrc, or remove its #include",
                )
            if headers.setdefault(text, by_name[target].data) != by_name[target].data:
                raise KernelError(
                    f"{file.name}: {text!r} means two files in one program",
                    found=f"{target}, and another file that is included by the same name",
                    needed="a different name for each file",
                    fix="rename one of the two files",
                )
    main = by_name[f"csrc/{family.device}"]
    digests = {file.name: file.sha256 for file in files}
    return Program(family.name, main.name, main.data, headers, digests, main.path, root)


def define_lines(defines: Mapping[str, str]) -> bytes:
    """Parameters of a variant, as lines before the source: NVRTC's own header breaks on one-letter -D options."""
    for name, value in defines.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or "\n" in value:
            raise ValueError(f"not a macro: {name!r} = {value!r}; needed a C identifier and a value in one line")
    return "".join(f"#define {name} {value}\n" for name, value in sorted(defines.items())).encode()


def image_key(program: Program, target: GpuTarget, compiler: Nvrtc, *, debug: bool) -> BuildKey:
    """The inputs of one image. With debug they include the sources' place, because a debugger reads them there."""
    inputs = {
        "family": program.family,
        "target": str(target),
        "nvrtc": compiler.version,
        "options": list(flags.nvrtc_options(target, debug=debug)),
        "sources": dict(program.digests),
        **({"place": str(program.path)} if debug else {}),
    }
    return BuildKey.of(program.family, "device", inputs)


def file_name(family: str, target: GpuTarget) -> str:
    """``rms_norm.sm_90.cubin`` or ``rms_norm.compute_90.ptx``."""
    return f"{family}.{target}.{'ptx' if target.kind is TargetKind.PTX else 'cubin'}"


def build_images(
    family: Family | str, targets: Sequence[GpuTarget], compiler: Nvrtc, *, cache: Cache, debug: bool, jobs: int
) -> tuple[Artifact, ...]:
    """One verified image per target, in the order of ``targets``.

    PTX that is wanted together with the machine code of its target takes no compile of its own: NVRTC makes the machine
    code from the same bytes.
    """
    from precast._builder import catalogue

    program = read_program(catalogue.get(family) if isinstance(family, str) else family)
    name, headers = (str(program.path), {}) if debug else (program.name, program.headers)
    searched = (f"--include-path={program.root}",) if debug else ()

    def call(target: GpuTarget, ptx: Call | None = None) -> Call:
        def file(done: nvrtc.Compiled) -> tuple[str, bytes]:
            image = done.ptx if target.kind is TargetKind.PTX else done.image
            _check(image, target, program.family)
            return file_name(program.family, target), image

        key, what = image_key(program, target, compiler, debug=debug), f"{program.family} for {target}"
        options = (*flags.nvrtc_options(target, debug=debug), *searched)
        return Call(key, what, program.name, program.source, name, headers, options, target, file, ptx=ptx)

    sass = {target: replace(target, kind=TargetKind.SASS) for target in targets if target.kind is TargetKind.PTX}
    ptx = {code: call(target) for target, code in sass.items() if code in targets}
    calls = [call(target, ptx.get(target)) for target in targets if sass.get(target) not in ptx]
    made = [*obtain(calls, compiler, cache, jobs), *obtain([*ptx.values()], compiler, cache, jobs)]
    found = dict(zip((each.target for each in (*calls, *ptx.values())), made, strict=True))
    return tuple(found[target] for target in targets)


def obtain(calls: Sequence[Call], compiler: Nvrtc, cache: Cache, jobs: int) -> tuple[Artifact, ...]:
    """The result of each call, in their order; cache misses are compiled in parallel."""
    tool = f"NVRTC {compiler.version}"

    def compiled(call: Call) -> tuple[nvrtc.Compiled, str]:
        ptx = call.target.kind is TargetKind.PTX
        opened = nvrtc_child.open_nvrtc(compiler)
        done = opened.compile(call.source, call.name, call.headers, call.options, ptx=ptx, instances=call.instances)
        command = f"{tool} ({compiler.path}) {call.shown} {' '.join(call.options)}"
        if done.error is not None:
            log_file = cache.failure_log(call.key)
            raise failure.build_failed(call.what, done.log or done.error, command, log_file, tool=tool)
        return done, f"{command}\n\n{done.log}"

    def one(call: Call) -> Artifact:
        results: list[tuple[nvrtc.Compiled, str]] = []

        def build(staging: Path) -> Path:
            results.append(compiled(call))
            return _written(call, *results[0], staging)

        artifact = cache.obtain(call.key, build)
        if results and (ptx := call.ptx) is not None:
            cache.obtain(ptx.key, lambda staging: _written(ptx, *results[0], staging))
        return artifact

    with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(calls) or 1))) as pool:
        return tuple(pool.map(one, calls))


def _written(call: Call, done: nvrtc.Compiled, log: str, staging: Path) -> Path:
    name, content = call.file(done)
    (staging / "build.log").write_text(log, encoding="utf-8")
    (staging / name).write_bytes(content)
    return staging / name


def _check(image: bytes, target: GpuTarget, family: str) -> None:
    """Check that an image is for its target before it is published."""
    if target.kind is TargetKind.PTX:
        found = re.search(rb"^\.target\s+(\w+)", image, re.MULTILINE)
        named = found[1].decode() if found else "no target"
    else:
        try:
            named = str(elf.read_cubin(image).target)
        except elf.ElfError as error:
            raise BuildFailed(
                f"{family} for {target}: NVRTC gave no usable cubin",
                found=str(error),
                needed=f"machine code for {target}",
                fix=REPORT,
            ) from error
    # A cubin's header may omit the suffix but must have the number.
    wanted = f"sm_{target.capability.number}"
    if named not in {wanted, wanted + target.suffix}:
        raise BuildFailed(
            f"{family} for {target}: NVRTC gave code for another target",
            found=f"code for {named}",
            needed=f"code for {wanted}",
            fix=REPORT,
        )
