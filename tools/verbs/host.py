"""Compile the host library of one architecture, or the adapter to one torch, into a part that wheels take.

Writes ``OUT/host-kernels-<arch>`` or ``OUT/adapter-<abi>-<arch>``: the file and ``parts.json``.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import matrix, parts
from precast._builder.binaries import check_ceilings, make_host
from precast._builder.cache import Cache, default_root
from precast.core.torch_abi import ANY_TORCH, Stable, parse_torch_abi
from precast.core.version import Label
from precast.errors import KernelError

ROOT = Path(__file__).resolve().parents[2]


def make(abi_text: str, machine: str, out: Path, settings: Settings) -> str:
    """Make the part unless it is up to date; return a line that says what was done."""
    abi = parse_torch_abi(abi_text)
    known = matrix.load(ROOT / "matrix.toml")
    if isinstance(abi, Stable) or abi not in known.hosts(machine):
        raise KernelError(
            f"no wheel for {machine} has a host file for {abi}",
            found=", ".join(map(str, known.hosts(machine))) or "no wheel for it at all",
            needed="one of these, as matrix.toml says",
            fix="python -m tools plan",
        )
    made = make_host(abi, replace(settings, arch=machine), Cache(default_root(settings)))
    (file, _), *_ = made.host
    check_ceilings(file)
    folder = out / parts.host_name(abi, machine)
    changed = parts.write(made, Label(""), ROOT, folder)
    return f"{folder.name}: {file.bytes} bytes, GLIBC_{file.glibc}, {'written' if changed else 'there already'}"


def main(arguments: list[str]) -> int:
    """Make one part."""
    parser = argparse.ArgumentParser(prog="python -m tools host", description=__doc__)
    parser.add_argument(
        "--abi", default=str(ANY_TORCH), help="the torch of an adapter, such as torch-2.6-cxx0; the library by default"
    )
    parser.add_argument("--arch", default=platform.machine(), help="x86_64 or aarch64; this machine's by default")
    parser.add_argument("--out", type=Path, required=True, help="the folder of parts")
    options = parser.parse_args(arguments)
    try:
        print(make(options.abi, options.arch, options.out, Settings.from_env(os.environ)))
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
