"""The parser of the command line: every verb's own arguments under one program name."""

from __future__ import annotations

import argparse
import platform
import sys
from types import ModuleType
from typing import Any, NoReturn

from precast._cli import doctor, output, status
from precast._load import system
from precast._version import __version__


def verbs_here() -> tuple[ModuleType, ...]:
    """The verbs for this system: all on Linux, elsewhere only ``doctor``, because the others need Linux."""
    if platform.system() != "Linux":
        return (doctor,)
    from precast._cli import adopt, cache, listing, report, transfer, warm, why, xray

    return (doctor, why, listing, xray, cache, warm, transfer, adopt, report)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors say so if this system has no kernels; it prints help through ``output``."""

    def error(self, message: str) -> NoReturn:
        here = platform.system()
        super().error(message if here == "Linux" else f"{system.only_linux(here)}; the one verb here is doctor")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            output.say(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)


def _help(options: argparse.Namespace) -> int:
    """Run when no verb is given."""
    output.say(options.parser.format_help().removesuffix("\n"))
    return status.GOOD


def make_parser() -> argparse.ArgumentParser:
    """A new parser. ``options.run(options)`` runs the parsed command and returns the exit status."""
    parser = _Parser(
        prog="precast",
        description="Prebuilt PyTorch kernels: whether they are ready on this machine, why not, and the build cache.",
        epilog="exit status: " + "; ".join(f"{code}: {meaning}" for code, meaning in status.MEANINGS.items()),
    )
    parser.add_argument("--version", action="version", version=f"precast {__version__}")
    parser.set_defaults(parser=parser, run=_help)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for module in verbs_here():
        module.add(verbs)
    return parser
