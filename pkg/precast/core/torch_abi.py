"""What of torch a library needs, and whether a given torch offers it.

A library of ours calls torch through a table of functions, so it fits every torch. Classic C++ code, as an adapter is,
works only with the torch minor it was compiled for: a 2.9 binary loads in 2.10, resolves every symbol and computes
nonsense. Code on torch's stable ABI works with every torch from its floor on.
"""

from __future__ import annotations

from enum import Enum

from .value import value
from .version import Release, TorchVersion

_HEX = frozenset("0123456789abcdef")

# The oldest torch with every function of the table. Older ones need an adapter.
STABLE_FLOOR = Release(2, 10)

# The oldest torch that there can be an adapter to.
CLASSIC_FLOOR = Release(2, 4)


class AbiKind(Enum):
    """How a file is tied to torch, from the loosest to the closest; the order of preference among files that fit."""

    TABLE = 0
    STABLE = 1
    EXACT = 2


@value(frozen=True)
class Exact:
    """One torch minor with one C++ library ABI; with ``git``, exactly one commit of torch."""

    kind = AbiKind.EXACT
    release: Release
    cxx11: bool
    git: str | None = None

    def __post_init__(self) -> None:
        if self.git is not None and not is_git_version(self.git):
            raise ValueError(f"not a git version: {self.git!r}; needed 7 to 64 lower-case hexadecimal digits")

    def __str__(self) -> str:
        git = "" if self.git is None else f"-git{self.git}"
        return f"torch-{self.release}-cxx{int(self.cxx11)}{git}"


@value(frozen=True)
class Stable:
    """Torch's stable ABI, for every torch from ``floor`` on."""

    kind = AbiKind.STABLE
    floor: Release

    def __str__(self) -> str:
        return f"torch-stable-{self.floor}"


@value(frozen=True)
class AnyTorch:
    """Any torch, through this version of the table of its functions (csrc/host/torch_table.h)."""

    kind = AbiKind.TABLE
    table: int

    def __str__(self) -> str:
        return f"torch-table-{self.table}"


ANY_TORCH = AnyTorch(1)

TorchAbi = Exact | Stable | AnyTorch


def parse_torch_abi(text: str) -> TorchAbi:
    """The ABI of ``"torch-table-1"``, ``"torch-stable-2.10"``, ``"torch-2.6-cxx0"`` or
    ``"torch-2.10-cxx1-git0123abc"``; otherwise ValueError.
    """
    match text.split("-"):
        case "torch", "table", version if version.isascii() and version.isdigit() and str(int(version)) == version:
            return AnyTorch(int(version))
        case "torch", "stable", floor:
            return Stable(Release.parse(floor))
        case "torch", release, ("cxx0" | "cxx1") as cxx:
            return Exact(Release.parse(release), cxx == "cxx1")
        case "torch", release, ("cxx0" | "cxx1") as cxx, git if git.startswith("git"):
            return Exact(Release.parse(release), cxx == "cxx1", git[3:])
    raise ValueError(f"not a torch ABI: {text!r}; needed one such as 'torch-table-1' or 'torch-2.6-cxx0'")


def is_git_version(text: str | None) -> bool:
    """True for text that names one commit; torch says ``Unknown`` if it was built outside a repository."""
    return text is not None and 7 <= len(text) <= 64 and _HEX.issuperset(text)


def closeness(abi: TorchAbi) -> tuple[int, bool]:
    """How closely a file is made for one torch; greater is better."""
    return abi.kind.value, isinstance(abi, Exact) and abi.git is not None


def floor(abi: TorchAbi) -> tuple[int, int]:
    """The oldest torch of a stable ABI; of two that fit, the one with the newer floor is better."""
    return (abi.floor.major, abi.floor.minor) if isinstance(abi, Stable) else (0, 0)


def needed(abi: TorchAbi) -> str:
    """A description of the torch that an ABI needs."""
    if isinstance(abi, AnyTorch):
        return "any torch"
    if isinstance(abi, Stable):
        return f"torch {abi.floor} or newer"
    if abi.git is not None:
        return f"the torch {abi.release} of git {abi.git[:10]}"
    return f"torch {abi.release} with cxx11 ABI {int(abi.cxx11)}"


def fits(abi: TorchAbi, torch: TorchVersion, cxx11: bool) -> str | None:
    """None if this torch offers the ABI, otherwise a description of the torch that was found.

    A pre-release is a development commit of its release: it lacks the ABI of that minor and may lack some of its stable
    functions. It meets the floors of older minors.
    """
    if isinstance(abi, AnyTorch):
        return None
    if isinstance(abi, Stable):
        if torch.release < abi.floor:
            return f"torch {torch}"
        if torch.release == abi.floor and torch.is_prerelease:
            return f"torch {torch}, a pre-release of {torch.release}"
        return None
    if abi.git is not None:
        if torch.git != abi.git:
            return f"torch {torch} of git {(torch.git or 'unknown')[:10]}"
    elif torch.release != abi.release:
        return f"torch {torch}"
    elif torch.is_prerelease:
        return f"torch {torch}, a pre-release of {torch.release}"
    return None if cxx11 == abi.cxx11 else f"torch {torch} with cxx11 ABI {int(cxx11)}"
