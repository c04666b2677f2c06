"""Compare the symbols that a host library needs with those that a torch exports, installed or recorded.

``tools/torch_symbols/<abi>.txt`` holds, for each classic ABI, the symbols that its library needs and that the real
libraries of a torch of that minor release were seen to define.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from precast.core.torch_abi import TorchAbi
from precast.errors import KernelError

LISTS = Path(__file__).resolve().parents[1] / "torch_symbols"
# The torch libraries in a classic library's NEEDED, and torch's OpenMP runtime next to them.
_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libgomp*.so*")


@dataclass(frozen=True, slots=True)
class Symbols:
    """The dynamic symbols of a library: those it defines, and those it needs from libraries without symbol versions."""

    defined: frozenset[str]
    asked: frozenset[str]


def read(path: Path) -> Symbols:
    """Read the dynamic symbol table of a file; ``asked`` omits weak references, which need no definition."""
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
    """The symbols that the libraries of an installed torch define; ``folder`` is its ``torch/lib``."""
    files = [path for pattern in _LIBRARIES for path in sorted(folder.glob(pattern))]
    if len(files) < len(_LIBRARIES):
        found = ", ".join(path.name for path in files) or "none of them"
        raise KernelError(f"{folder} is not that of a torch", found=found, needed=", ".join(_LIBRARIES))
    return frozenset().union(*(read(path).defined for path in files))


def recorded(abi: TorchAbi, folder: Path = LISTS) -> frozenset[str] | None:
    """The recorded symbols of a torch with that ABI, or None if there is no record."""
    path = folder / f"{abi}.txt"
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def record(abi: TorchAbi, torch: str, names: Iterable[str], folder: Path = LISTS) -> Path:
    """Record the symbols that were seen in a torch."""
    head = f"# What the host library {abi} asks of torch: of libtorch_cpu.so, libc10.so and libgomp in {torch}"
    path = folder / f"{abi}.txt"
    path.write_text("\n".join([head, *sorted(names), ""]), encoding="utf-8")
    return path


def check(library: Path, offered: frozenset[str], where: str) -> frozenset[str]:
    """The symbols that the library needs from torch; KernelError names those that torch does not define."""
    asked = read(library).asked
    missing = sorted(asked - offered)
    if missing:
        shown = ", ".join([*missing[:5], *(["..."] if len(missing) > 5 else [])])
        raise KernelError(
            f"{library.name} asks for what torch does not define",
            found=f"{shown} ({len(missing)} of {len(asked)})",
            needed=f"symbols of {where}",
        )
    return asked


def _unversioned(versions: object, index: int) -> bool:
    """Whether a symbol has no version: torch's libraries have none, those of the system all have."""
    if not isinstance(versions, GNUVerSymSection):
        return True
    return versions.get_symbol(index)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
