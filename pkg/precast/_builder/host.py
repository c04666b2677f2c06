"""Host libraries and adapters. A library is for any torch and links to nothing of it; an adapter is for one torch.

An adapter is linked against stubs that have only the names of torch's libraries. Ninja compiles the missing objects.
Each object has its own cache entry, so an edit recompiles only the units that it reaches, and two families share the
objects of ``catalogue.COMMON_HOST``.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._abi.settings import LINE_BREAKS
from precast._builder import (
    catalogue,
    classic_headers,
    elf,
    failure,
    flags,
    installer,
    lock,
    process,
    sources,
    toolchain,
)
from precast._builder.cache import Artifact, BuildKey, Cache
from precast._builder.catalogue import Family
from precast._builder.entry import LOG_NAME
from precast._version import __version__
from precast.core.host import Compiler
from precast.core.torch_abi import Exact
from precast.errors import REPORT, BuildFailed, KernelError, KernelUnavailable

_EXPORTS = "{ global: precast_*; local: *; };\n"
_LIBRARY_EXPORTS = frozenset({"precast_attach", "precast_build_id", "precast_families", "precast_register"})
_ADAPTER_EXPORTS = frozenset({"precast_torch_table"})


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile: a source with one set of options. ``name`` is the name of the object."""

    name: str
    source: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All parts of a library or an adapter, known before anything is compiled. ``abi`` is the torch of an adapter."""

    name: str
    key: BuildKey
    units: tuple[tuple[Unit, BuildKey], ...]
    roots: Mapping[str, Path]
    compiler: Compiler
    abi: Exact | None
    machine: str
    debug: bool

    @property
    def stubs(self) -> tuple[str, ...]:
        """The torch libraries that an adapter must name in NEEDED."""
        return () if self.abi is None else flags.TORCH


def torch_headers_dir(abi: Exact, cache: Cache) -> Path:
    """The torch include folder for an adapter: the installed torch's for a commit, otherwise a pinned release's.

    An adapter for a release is the same wherever it is built. One for a commit is built with that torch, only for it.
    """
    if abi.git is not None:
        return classic_headers.installed(abi.git)
    where = lock.lock_file(cache.root, f"headers-{abi.release}")
    what = f"the C++ headers of torch {abi.release}"
    with lock.exclusive(where, what, wait_s=cache.wait_s):  # both C++ library ABIs of a minor share these headers
        return classic_headers.ensure(cache.root / "headers", abi)


def build_host_library(
    families: Sequence[Family | str],
    compiler: Compiler,
    *,
    cache: Cache,
    debug: bool,
    jobs: int,
    ninja: str,
    levels: tuple[flags.CpuLevel, ...] | None = None,
    machine: str | None = None,
) -> Artifact:
    """The library of these families, verified; builds it on a cache miss.

    ``machine`` is by default this machine; the compiler must target it. ``levels`` are the CPU levels to include; by
    default all.
    """
    machine = machine or platform.machine()
    known = tuple(catalogue.get(family) if isinstance(family, str) else family for family in families)
    levels = levels or flags.cpu_levels(machine)
    plan = make_plan(known, compiler, debug=debug, levels=levels, machine=machine)
    return cache.obtain(plan.key, lambda staging: _build(plan, staging, cache, jobs, ninja))


def build_adapter(
    abi: Exact,
    compiler: Compiler,
    *,
    cache: Cache,
    debug: bool,
    jobs: int,
    ninja: str,
    machine: str | None = None,
) -> Artifact:
    """The adapter to one torch, verified; builds it on a cache miss."""
    plan = make_adapter_plan(abi, compiler, cache=cache, debug=debug, machine=machine)
    return cache.obtain(plan.key, lambda staging: _build(plan, staging, cache, jobs, ninja))


def make_plan(
    families: Sequence[Family],
    compiler: Compiler,
    *,
    debug: bool,
    levels: tuple[flags.CpuLevel, ...],
    machine: str | None = None,
) -> Plan:
    """The plan of a library: reads the sources and derives every key, compiles nothing."""
    name = families[0].name if len(families) == 1 else "host"
    of_families = (source for family in families for source in (*family.host, *family.cpu))
    sources_of = (*catalogue.COMMON_HOST, *of_families)

    def units(build_id: str) -> tuple[Unit, ...]:
        return list_units(families, compiler.kind, levels, debug=debug, build_id=build_id)

    about = {"families": [family.name for family in families]}
    return _plan(name, sources_of, units, {"csrc": sources.csrc_dir()}, compiler, None, debug, machine, about)


def make_adapter_plan(abi: Exact, compiler: Compiler, *, cache: Cache, debug: bool, machine: str | None = None) -> Plan:
    """The plan of an adapter. Only an adapter for a release may need the network, for its headers."""
    _refuse_clang(abi, compiler)
    options = (*flags.host_options(compiler.kind, debug=debug), *flags.adapter_options(abi))
    roots = {"csrc": sources.csrc_dir(), "torch": torch_headers_dir(abi, cache)}

    def units(_: str) -> tuple[Unit, ...]:
        return tuple(Unit(_object_name(source), source, options) for source in catalogue.ADAPTER)

    return _plan("adapter", catalogue.ADAPTER, units, roots, compiler, abi, debug, machine, {"abi": str(abi)})


def _plan(
    name: str,
    entries: Sequence[str],
    units_of: Callable[[str], tuple[Unit, ...]],
    roots: Mapping[str, Path],
    compiler: Compiler,
    abi: Exact | None,
    debug: bool,
    machine: str | None,
    about: Mapping[str, Any],
) -> Plan:
    machine = machine or platform.machine()
    tree = sources.Tree(roots)
    closure = {entry: {file.name: file.sha256 for file in tree.reachable([f"csrc/{entry}"])} for entry in entries}
    everything = {file: sha for files in closure.values() for file, sha in files.items()}
    build_id = f"{__version__} {_digest(everything)[:16]}"
    identity = _identity(compiler, machine)
    if debug:  # a debugger looks for the sources in their original place
        identity["place"] = str(roots["csrc"])
    units = tuple(
        (unit, BuildKey.of("objects", "object", identity | _unit_inputs(unit, closure))) for unit in units_of(build_id)
    )
    inputs = {
        **identity,
        **about,
        "build_id": build_id,
        "units": {unit.name: list(unit.options) for unit, _ in units},
        "link": [*flags.link_options(debug=debug), *(() if abi is None else flags.TORCH), _EXPORTS],
        "sources": everything,
    }
    return Plan(name, BuildKey.of(name, "host", inputs), units, roots, compiler, abi, machine, debug)


def _refuse_clang(abi: Exact, compiler: Compiler) -> None:
    if compiler.kind != "g++":
        raise KernelUnavailable(
            f"no adapter to {abi} can be built by {compiler.kind}",
            found=f"{compiler.path}: clang's OpenMP is incompatible with torch's",
            needed="g++",
            fix=" && ".join(filter(None, [installer.compiler_command(), "export CXX=g++"])),
        )


def list_units(
    families: Sequence[Family],
    kind: str,
    levels: tuple[flags.CpuLevel, ...],
    *,
    debug: bool,
    build_id: str,
) -> tuple[Unit, ...]:
    """Every compile of a library, in link order. Only ``api.cpp`` gets the build id and depends on it."""
    base = (*flags.host_options(kind, debug=debug), *flags.level_defines(levels))
    units = []
    for source in catalogue.COMMON_HOST:
        own = (f'-DPRECAST_BUILD_ID="{build_id}"',) if source == "host/api.cpp" else ()
        units.append(Unit(_object_name(source), source, (*base, *own)))
    for family in families:
        units += [Unit(_object_name(source), source, base) for source in family.host]
        for source in family.cpu:
            for level in levels:
                options = (*flags.host_options(kind, debug=debug), *flags.cpu_options(level, debug=debug))
                units.append(Unit(f"{_object_name(source)}.{level.name}", source, options))
    return tuple(dict.fromkeys(units))  # families can share sources


def _start_late(unit: tuple[Unit, BuildKey]) -> bool:
    source = unit[0].source
    return source in catalogue.COMMON_HOST


def _object_name(source: str) -> str:
    return source.removesuffix(".cpp").replace("/", ".")


def _identity(compiler: Compiler, machine: str) -> dict[str, Any]:
    libc = toolchain.libc_version(compiler, machine)
    return {"compiler": f"{compiler.kind} {compiler.version}", "machine": machine, "libc": libc}


def _unit_inputs(unit: Unit, closure: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {"name": unit.name, "options": list(unit.options), "sources": dict(closure[unit.source])}


def _digest(files: Mapping[str, str]) -> str:
    return sources.digest_of_pairs(files.items())


def _build(plan: Plan, staging: Path, cache: Cache, jobs: int, ninja: str) -> Path:
    """Compile the missing units and link, inside ``staging``. The log of a failed build is kept."""
    work = staging / "work"
    work.mkdir()
    payload = staging / f"{plan.name}.so"
    objects = {unit.name: cache.lookup(key) for unit, key in plan.units}
    (work / "exports.map").write_text(_EXPORTS, encoding="utf-8")
    (work / "build.ninja").write_bytes(os.fsencode(ninja_file(plan, objects, payload, work)))
    started = time.perf_counter()
    run_ninja(ninja, work, jobs, plan.compiler, staging / LOG_NAME, cache, plan.key)
    seconds = time.perf_counter() - started
    verify_library(payload.read_bytes(), plan.machine, torch=plan.stubs)
    for unit, key in plan.units:
        if objects[unit.name] is None:
            cache.spare(key, work / f"{unit.name}.o", seconds)
    shutil.rmtree(work)
    return payload


def ninja_file(plan: Plan, objects: Mapping[str, Path | None], payload: Path, work: Path) -> str:
    """The build graph: each missing object, the stubs of an adapter, and the link."""
    lines = ["ninja_required_version = 1.5", "rule run", "  command = $run", "  description = $out", ""]
    linked = [str(objects[unit.name] or f"{unit.name}.o") for unit, _ in plan.units]
    # The slowest compiles come first, because ninja starts in this order.
    for unit, _ in sorted(plan.units, key=_start_late):
        if objects[unit.name] is None:
            lines += edge(f"{unit.name}.o", (), _compile_command(plan, unit, work))
    options = flags.link_options(debug=plan.debug)
    soname = f"precast-{plan.name}.so"
    return "\n".join([*lines, *link_edges(plan.compiler.path, options, linked, str(payload), soname, plan.stubs)])


def link_edges(
    compiler: str, options: Sequence[str], objects: Sequence[str], output: str, soname: str, stubs: Sequence[str]
) -> list[str]:
    """The statements of the stubs, which stand for torch's libraries, and of the link, which reads ``exports.map``."""
    made = [line for stub in stubs for line in edge(stub, (), flags.stub_command(compiler, stub, stub))]
    command = flags.host_link_command(
        compiler,
        tuple(options),
        objects=tuple(objects),
        output=output,
        soname=soname,
        exports="exports.map",
        stubs=tuple(f"./{stub}" for stub in stubs),
    )
    return [*made, *edge(output, (*objects, *stubs), command)]


def run_ninja(
    ninja: str,
    folder: Path,
    jobs: int,
    compiler: Compiler,
    log: Path,
    cache: Cache,
    key: BuildKey,
    umask: int = process.PRIVATE,
) -> None:
    """Run the ``build.ninja`` of a folder. BuildFailed with the first error; the cache keeps the log under the key."""
    command = [ninja, "-C", str(folder), "-j", str(jobs), "-v"]
    status, said = process.run(command, log=log, environment=process.clean(os.environ), umask=umask)
    if status:
        tool = f"{compiler.kind} {compiler.version}"
        raise failure.build_failed(key.name, said, failed_command(said) or "ninja", cache.failure_log(key), tool=tool)


def _compile_command(plan: Plan, unit: Unit, work: Path) -> tuple[str, ...]:
    roots = {name: str(path) for name, path in plan.roots.items()}
    return flags.host_compile_command(
        plan.compiler.path,
        unit.options,
        source=f"{roots['csrc']}/{unit.source}",
        output=f"{unit.name}.o",
        roots={} if plan.debug else roots,
        includes=(roots["csrc"],),
        system=tuple(folder for name, folder in roots.items() if name != "csrc"),
        build_dir=str(work),
        seed=unit.name,
    )


def compile_commands(plan: Plan) -> list[dict[str, object]]:
    """Every compile of a plan, cached or not, as in compile_commands.json, for editors and analysers."""
    folder = plan.roots["csrc"]
    return [
        {
            "directory": str(folder),
            "file": str(folder / unit.source),
            "output": f"{unit.name}.o",
            "arguments": list(_compile_command(plan, unit, folder)),
        }
        for unit, _ in plan.units
    ]


def verify_library(data: bytes, machine: str, *, torch: Sequence[str] = ()) -> elf.ElfInfo:
    """Check a linked library for everything that the loader relies on, before it is published.

    ``torch`` are the libraries of torch that an adapter needs. Any other library needs the C and C++ runtime alone.
    """
    try:
        info = elf.read_shared_object(data)
    except elf.ElfError as error:
        raise BuildFailed(
            "the linker wrote no usable library", found=str(error), needed="a shared library", fix=REPORT
        ) from error
    if info.machine != machine:
        raise BuildFailed(
            "the compiler is for another CPU architecture",
            found=f"a library for {info.machine}",
            needed=f"a library for {machine}",
            fix=["unset CXX", f"export CXX={machine}-linux-gnu-g++"],
        )
    exports = _ADAPTER_EXPORTS if torch else _LIBRARY_EXPORTS
    wrong = {
        "NEEDED without": [soname for soname in torch if soname not in info.needed],
        "NEEDED with": sorted(set(info.needed) - flags.RUNTIME - set(torch)),
        "exports without": sorted(exports - info.exported),
        "foreign exports": sorted(name for name in info.exported if not name.startswith("precast_"))[:5],
    }
    if any(wrong.values()):
        found = "; ".join(f"{what} {', '.join(names)}" for what, names in wrong.items() if names)
        raise BuildFailed(
            f"the {'adapter' if torch else 'host library'} came out with wrong dependencies or exports",
            found=found,
            needed=(
                f"{' and '.join([*torch, 'the C and C++ runtime'])} in NEEDED, precast_* as the only exports, with "
                f"{', '.join(sorted(exports))}"
            ),
            fix=REPORT,
        )
    return info


def edge(
    output: str, inputs: Sequence[str], command: Sequence[str], *, rule: str = "run", implicit: Sequence[str] = ()
) -> list[str]:
    """One build statement. Paths are escaped for ninja, and the command for the shell and for ninja.

    ``implicit`` are inputs that the command reads but does not name.
    """
    broken = next(
        (path for path in (output, *inputs, *implicit, *command) if any(c in path for c in LINE_BREAKS)), None
    )
    if broken is not None:
        raise KernelError(
            "ninja cannot build a file whose name has a line break",
            found=f"{broken!r}",
            needed="a name without a line break",
            fix="move it to a folder whose path has no line break",  # no cache has one
        )
    named = [path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:") for path in inputs]
    escaped = " ".join([*named, *(("|", *implicit) if implicit else ())])
    target = output.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
    return [f"build {target}: {rule} {escaped}".rstrip(), f"  run = {shlex.join(command).replace('$', '$$')}", ""]


def failed_command(log: str) -> str:
    """The command line that ninja prints below the first FAILED, if there is one."""
    match = re.search(r"^FAILED:.*\n(.*)", log, re.MULTILINE)
    return match[1] if match else ""
