"""The library of a StableExtension: parallel compiles in a build folder that is kept, and only of what has changed.

Ninja knows from each compile which headers it read, and a command that differs is a compile that is due. So a debug
build after a release build, or one with another compiler, leaves no object of the other behind.
"""

from __future__ import annotations

from pathlib import Path

from precast._abi.settings import Settings
from precast._build import failure, flags, host, process, toolchain
from precast._build.cache import open_cache
from precast.build.extensions import StableExtension
from precast.errors import KernelError

_LOG = "build.log"


def build_library(extension: StableExtension, output: Path, folder: Path, settings: Settings) -> tuple[str, str]:
    """Make ``output`` from the sources, with its objects in ``folder``; the compiler's kind and version."""
    compiler, looked_at = toolchain.find_compiler(settings)
    ninja, ninja_looked_at = toolchain.find_ninja()
    if compiler is None or ninja is None:
        raise KernelError(
            f"{extension.name} cannot be built\n"
            + "".join(f"  found   {line}\n" for line in (*looked_at, *ninja_looked_at))
            + "  needed  a C++ compiler and ninja\n  fix     1) apt-get install g++   2) pip install ninja"
        )
    folder.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    headers = host.stable_headers_dir(open_cache(settings))
    text = ninja_file(extension, output.resolve(), folder, compiler.path, compiler.kind, headers, settings)
    (folder / "build.ninja").write_text(text, encoding="utf-8")
    command = [ninja, "-C", str(folder), "-j", str(toolchain.default_jobs(settings)), "-v"]
    status, log = process.run(command, log=folder / _LOG, environment=host.clean_environment())
    if status:
        tool = f"{compiler.kind} {compiler.version}"
        raise failure.build_failed(extension.name, log, host.failed_command(log), folder / _LOG, tool=tool)
    return compiler.kind, compiler.version


def ninja_file(
    extension: StableExtension,
    output: Path,
    folder: Path,
    compiler: str,
    kind: str,
    headers: Path,
    settings: Settings,
) -> str:
    """The graph: each object with the headers it read the last time, the stub of torch, the link."""
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
            roots={} if settings.debug else {".": root, "torch_stable": str(headers)},
            includes=tuple(str(Path(place).resolve()) for place in extension.include_dirs),
            system=(str(headers),),
            build_dir=str(folder.resolve()),
            seed=source,
        )
        lines += host.edge(
            output_name, (str(Path(source).resolve()),), (*toolchain.launcher(), *command), rule="compile"
        )
    stubs = flags.stub_sonames(extension.abi)
    for soname in stubs:
        lines += host.edge(soname, (), flags.stub_command(compiler, soname, soname))
    exports = folder / "exports.map"
    exports.write_text("{ global: *; };\n", encoding="utf-8")
    command = flags.host_link_command(
        compiler,
        (*flags.link_options(debug=settings.debug), *extension.extra_link_args),
        objects=tuple(objects),
        output=str(output),
        soname=output.name,
        exports="exports.map",
        stubs=tuple(f"./{soname}" for soname in stubs),
    )
    return "\n".join([*lines, *host.edge(str(output), (*objects, *stubs), command)])
