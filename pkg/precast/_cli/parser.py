"""The parser of the command line: every verb's own arguments under one program name."""

from __future__ import annotations

import argparse
import platform
from types import ModuleType

from precast._cli import doctor, status
from precast._version import __version__


def verbs_here() -> tuple[ModuleType, ...]:
    """All; and where nothing can be built or loaded, the one that says so: the others need what only Linux has."""
    if platform.system() != "Linux":
        return (doctor,)
    from precast._cli import cache, completion, listing, report, transfer, warm, why

    return (doctor, why, listing, cache, warm, transfer, report, completion)


def make_parser() -> argparse.ArgumentParser:
    """A fresh parser; ``options.run(options)`` of what it has parsed gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="precast",
        description="Prebuilt PyTorch kernels: what would be loaded here and why, and the build cache.",
        epilog="exit status: " + "; ".join(f"{code}: {meaning}" for code, meaning in status.MEANINGS.items()),
    )
    parser.add_argument("--version", action="version", version=f"precast {__version__}")
    parser.set_defaults(parser=parser)  # for the verb that prints what the others are
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in verbs_here():
        module.add(verbs)
    return parser
