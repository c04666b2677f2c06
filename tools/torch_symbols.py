"""What a host library takes from torch, held against what a torch exports: of an installed one, or as it was recorded.

``tools/torch_symbols/<abi>.txt`` holds, for each classic ABI, the symbols that the library for it asks for and that the
real libraries of a torch of that minor were seen to define.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from precast._abi.torch_abi import TorchAbi
from precast.errors import KernelError

LISTS = Path(__file__).with_name("torch_symbols")
# What a classic library names in NEEDED, and the OpenMP runtime that lies beside it.
_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libgomp*.so*")
_UNVERSIONED = 1  # VER_NDX_GLOBAL: torch's libraries have no versions, those of the system all have


@dataclass(frozen=True, slots=True)
class Symbols:
    """The dynamic symbols of one library: those it defines for others, and those it asks of libraries without versions."""

    defined: frozenset[str]
    asked: frozenset[str]


def read(path: Path) -> Symbols:
    """The dynamic symbol table of a file; weak references are left out of ``asked``, as nobody has to answer them."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        if not isinstance(table, SymbolTableSection):
            raise KernelError(f"{path} has no dynamic symbols")
        defined, asked = set(), set()
        for index, symbol in enumerate(table.iter_symbols()):
            binding = symbol["st_info"]["bind"]
            if not symbol.name or binding == "STB_LOCAL":
                continue
            if symbol["st_shndx"] != "SHN_UNDEF":
                defined.add(symbol.name)
            elif binding != "STB_WEAK" and _unversioned(versions, index):
                asked.add(symbol.name)
    return Symbols(frozenset(defined), frozenset(asked))


def of_torch(folder: Path) -> frozenset[str]:
    """What the libraries of an installed torch define, ``folder`` being its ``torch/lib``."""
    files = [path for pattern in _LIBRARIES for path in sorted(folder.glob(pattern))]
    if len(files) < len(_LIBRARIES):
        found = ", ".join(path.name for path in files) or "none of them"
        raise KernelError(f"{folder} is not that of a torch\n  found   {found}\n  needed  {', '.join(_LIBRARIES)}")
    return frozenset().union(*(read(path).defined for path in files))


def recorded(abi: TorchAbi, folder: Path = LISTS) -> frozenset[str] | None:
    """What was seen in a torch of that ABI; None where none has been looked at."""
    path = folder / f"{abi}.txt"
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def record(abi: TorchAbi, torch: str, names: Iterable[str], folder: Path = LISTS) -> Path:
    """Keep what was seen in a torch."""
    head = f"# What the host library {abi} asks of torch. All of it is in libtorch_cpu.so, libc10.so and the libgomp of\n"
    path = folder / f"{abi}.txt"
    path.write_text(f"{head}# torch {torch}.\n" + "".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
    return path


def check(library: Path, offered: frozenset[str], where: str) -> frozenset[str]:
    """What the library asks of torch, all of which is offered; KernelError names what is not."""
    asked = read(library).asked
    missing = sorted(asked - offered)
    if missing:
        raise KernelError(
            f"{library.name} asks for what torch does not define\n"
            f"  found   {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''} ({len(missing)} of {len(asked)})\n"
            f"  needed  symbols of {where}"
        )
    return asked


def _unversioned(versions: object, index: int) -> bool:
    if not isinstance(versions, GNUVerSymSection):
        return True
    ndx = versions.get_symbol(index)["ndx"]
    return ndx == "VER_NDX_GLOBAL" or ndx == _UNVERSIONED or re.fullmatch(r"VER_NDX_LOCAL", str(ndx)) is not None
