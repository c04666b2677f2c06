"""Record which symbols that a host library takes its torch exports: what the audit holds classic libraries against.

A torch is some hundred megabytes; of what it exports, a list keeps what our libraries take. One that takes another
symbol is refused until somebody has asked its torch again, with this.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from precast._abi.torch_abi import Exact, parse_torch_abi
from precast.errors import KernelError
from tools import binaries
from tools.guards.subject import TORCH_LISTS
from tools.guards.symbols import LIBRARIES, asked_of_torch

_VERSION = re.compile(r"^__version__ = ['\"]([^'\"]+)['\"]", re.MULTILINE)


def record(abi: Exact, torch: Path, libraries: Iterable[Path], out: Path) -> Path:
    """Write the list of an ABI; symbols that an earlier list has, of another architecture, stay in it."""
    folders = (torch / "lib", torch.parent / "torch.libs")  # where a repaired torch keeps its OpenMP runtime
    found = [path for folder in folders for pattern in LIBRARIES for path in sorted(folder.glob(pattern))]
    version = _version(torch)
    if version.partition("+")[0].rsplit(".", 1)[0] != str(abi.release) or not found:
        raise KernelError(
            f"{torch} cannot say what {abi} exports\n"
            f"  found   torch {version} with {', '.join(path.name for path in found) or 'no library'}\n"
            f"  needed  the folder of an installed torch {abi.release}, with its lib folder"
        )
    exported = {name for path in found for name in binaries.symbols_of(path)}
    taken: set[str] = set()
    for path in libraries:
        for symbol in asked_of_torch(binaries.read_library(path.read_bytes())):
            if symbol.name not in exported and not symbol.weak:
                raise KernelError(
                    f"{path.name} does not fit torch {version}\n"
                    f"  found   the undefined symbol {symbol}\n"
                    f"  needed  one that {', '.join(path.name for path in found)} export"
                )
            taken |= {symbol.name} & exported
    machine = binaries.machine_of(found[0])
    target = out / f"{abi}.txt"
    before = target.read_text(encoding="utf-8").splitlines() if target.is_file() else []
    origins = {line for line in before if line.startswith("#")} | {f"# torch {version}, {machine}"}
    names = {line for line in before if line and not line.startswith("#")} | taken
    out.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([*sorted(origins), *sorted(names)]) + "\n", encoding="utf-8")
    return target


def _version(torch: Path) -> str:
    path = torch / "version.py"
    match = _VERSION.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return "of no version" if match is None else match[1]


def main(arguments: list[str]) -> int:
    """Record one list."""
    parser = argparse.ArgumentParser(prog="python -m tools symbols", description=__doc__)
    parser.add_argument("library", type=Path, nargs="+", help="host libraries for the ABI, of any architecture")
    parser.add_argument("--abi", required=True, help="such as torch-2.9-cxx1")
    parser.add_argument("--torch", type=Path, required=True, help="the torch folder of an environment")
    parser.add_argument("--out", type=Path, default=TORCH_LISTS)
    options = parser.parse_args(arguments)
    try:
        abi = parse_torch_abi(options.abi)
        if not isinstance(abi, Exact):
            raise KernelError(f"{abi} is judged by the pinned headers, and not by a list")
        print(record(abi, options.torch, options.library, options.out))
    except (KernelError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
