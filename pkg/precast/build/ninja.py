"""Build the library of a StableExtension with ninja: parallel and incremental, in a build folder that is kept.

Ninja records which headers each compile read, and compiles again if the command differs. So a debug build after a
release build, or one with another compiler, reuses no stale object. Two inputs do not show in a command: a compiler
that was replaced in place, and torch's headers, whose folder differs in each isolated build. So the file ``tools``
holds the compiler's version and a digest of the headers, and every object depends on it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import binaries, flags, headers, host, process, toolchain
from precast._builder.cache import BuildKey, open_cache
from precast.build import wheel
from precast.build.extensions import StableExtension

_LOG, _TOOLS, _TORCH = "build.log", "tools", "torch_stable"


def build_library(extension: StableExtension, output: Path, folder: Path, settings: Settings) -> tuple[str, str]:
    """Build ``output`` with its objects in ``folder``; return the compiler's kind and version."""
    compiler, ninja = binaries.host_tools(replace(settings, arch=None), extension.name)
    folder.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    include = headers.for_extensions()
    _point(folder / _TORCH, include)
    wheel.write_changed(folder / _TOOLS, f"{compiler.kind} {compiler.version}\n{_digest(include)}\n".encode())
    text = ninja_file(extension, output.resolve(), folder, compiler.path, compiler.kind, settings)
    (folder / "build.ninja").write_bytes(os.fsencode(text))
    # The log of a failure is kept in the cache, because pip removes the whole folder of an isolated build.
    cache, key = open_cache(settings), BuildKey(extension.name, {"folder": str(folder.resolve())})
    jobs = toolchain.default_jobs(settings)
    host.run_ninja(ninja, folder, jobs, compiler, folder / _LOG, cache, key, process.INHERITED)
    return compiler.kind, compiler.version


def ninja_file(
    extension: StableExtension,
    output: Path,
    folder: Path,
    compiler: str,
    kind: str,
    settings: Settings,
) -> str:
    """The build graph: the objects with their recorded headers, the stubs of torch's libraries, the link."""
    lines = [
        "ninja_required_version = 1.5",
        "rule compile",
        "  command = $run -MMD -MF $out.d",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule run",
        "  command = $run",
        "",
    ]
    options = (
        *flags.host_options(kind, debug=settings.debug),
        flags.torch_target_version(extension.abi.floor),
        *(f"-D{name}" if value is None else f"-D{name}={value}" for name, value in extension.define_macros),
        *extension.extra_compile_args,
    )
    root = str(Path.cwd())
    objects = []
    for source in extension.sources:
        output_name = f"{source.replace('/', '.')}.o"
        objects.append(output_name)
        command = flags.host_compile_command(
            compiler,
            options,
            source=str(Path(source).resolve()),
            output=output_name,
            roots={} if settings.debug else {".": root},
            includes=tuple(str(Path(place).resolve()) for place in extension.include_dirs),
            system=(_TORCH,),
            build_dir=str(folder.resolve()),
            seed=source,
        )
        lines += host.edge(
            output_name,
            (str(Path(source).resolve()),),
            (*toolchain.launcher(), *command),
            rule="compile",
            implicit=(_TOOLS,),
        )
    stubs = flags.TORCH[:1]  # the stable ABI is in libtorch_cpu.so alone
    (folder / "exports.map").write_text("{ global: *; };\n", encoding="utf-8")
    link = (*flags.link_options(debug=settings.debug), *extension.extra_link_args)
    return "\n".join([*lines, *host.link_edges(compiler, link, objects, str(output), output.name, stubs)])


def _point(link: Path, target: Path) -> None:
    """Point a symlink to a folder, so that commands stay the same when the folder moves."""
    if link.is_symlink() and link.readlink() == target.resolve():
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target.resolve())


def _digest(include: Path) -> str:
    """A digest of the stable ABI headers in a folder, independent of its path and of file times."""
    parts = ("torch/csrc/stable", "torch/headeronly", "torch/csrc/inductor/aoti_torch")
    total = hashlib.sha256()
    for path in sorted(path for part in parts for path in (include / part).rglob("*.h")):
        total.update(f"{path.relative_to(include)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
