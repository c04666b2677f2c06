"""From the arguments of a command to its exit status."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precast._cli import output, status
from precast._cli.parser import make_parser
from precast._load import probe
from precast.errors import KernelError, block


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return a status of :mod:`precast._cli.status`. Wrong usage raises SystemExit(2).

    This handles the failures that any verb may have: kernel and system errors, an interrupt, and a standard output
    that is closed, full, or a pipe whose reader has exited.
    """
    try:
        output.open_streams()
        try:
            code = _run(argv)
        except SystemExit:  # raised by argparse: --help, --version, wrong usage
            output.flush()
            raise
        output.flush()
    except output.ReaderGone:  # `precast list | head`
        return status.GOOD
    except output.CannotPrint as error:
        return _say(f"standard output cannot be written: {error}", status.FAILED)
    except KeyboardInterrupt:
        return status.INTERRUPTED
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        Path.cwd()
    except FileNotFoundError:  # torch's MKL would end the process
        return _say(block("the current directory was deleted", fix="cd to a folder that exists"), status.FAILED)
    try:
        parser = make_parser()
        _answer_shell(parser)
        options = parser.parse_args(argv)
        try:
            probe.read_settings()
        except KernelError as error:
            return _say(f"{type(error).__name__}: {error}", status.USAGE)
        result: int = options.run(options)
    except KernelError as error:
        return _say(f"{type(error).__name__}: {error}", status.FAILED)
    except OSError as error:  # not handled by the verb
        where = f"{error.filename}: " if error.filename is not None else ""
        return _say(f"{type(error).__name__}: {where}{error.strerror or error}", status.FAILED)
    return result


def _answer_shell(parser: argparse.ArgumentParser) -> None:
    """If the shell function of argcomplete asks, print the words that may follow, and exit."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete
    from argcomplete.completers import FilesCompleter

    from precast._cli import names

    class Words(FilesCompleter):
        def __call__(self, prefix: str, **known: Any) -> list[str]:
            return list(names.known()) if known["action"].metavar == "KERNEL" else super().__call__(prefix)

    argcomplete.autocomplete(parser, default_completer=Words())


def _say(text: str, code: int) -> int:
    output.complain(text)
    return code
