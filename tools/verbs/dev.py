"""Build kernel families for this machine after an edit: what changed, and nothing else, into the cache of the loader.

Also writes compile_commands.json, for editors. With PRECAST_DEBUG=1 everything is built for a debugger. Exit status: 0,
built; 1, a compiler refused; 2, a family that there is not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import aot, catalogue, flags, host
from precast._builder.binaries import host_tools
from precast._builder.cache import open_cache
from precast.errors import KernelError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = "compile_commands.json"


def main(arguments: list[str]) -> int:
    """Build the named families; by default, all."""
    parser = argparse.ArgumentParser(prog="python -m tools dev", description=__doc__)
    parser.add_argument("family", nargs="*", help="such as rms_norm, which also means rms_norm_backward")
    parser.add_argument("--commands", type=Path, default=ROOT / COMMANDS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    families = chosen(options.family)
    unknown = [name for name in options.family if not chosen([name])]
    if unknown:
        names = ", ".join(family.name for family in catalogue.FAMILIES)
        print(f"no kernel family {unknown[0]!r}; there are: {names}", file=sys.stderr)
        return 2
    settings = Settings.from_env(os.environ)
    started = time.perf_counter()
    try:
        cache = open_cache(settings)
        write_commands(options.commands, settings)
        aot.build_for_here(families, settings, cache)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    how = " for a debugger" if settings.debug else ""
    print(f"{len(families)} families are ready{how}: {time.perf_counter() - started:.1f} s")
    return 0


def chosen(names: Sequence[str]) -> tuple[catalogue.Family, ...]:
    """The families with these names, each with its backward; without names, all families."""
    wanted = {*names, *(f"{name}_backward" for name in names)}
    return tuple(family for family in catalogue.FAMILIES if not names or family.name in wanted)


def write_commands(path: Path, settings: Settings) -> None:
    """Write the compile commands of every host source, because an editor needs those of all families."""
    compiler, _ = host_tools(settings)
    levels = flags.cpu_levels(platform.machine())
    plan = host.make_plan(catalogue.FAMILIES, compiler, debug=settings.debug, levels=levels)
    text = json.dumps(host.compile_commands(plan), indent=1) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
