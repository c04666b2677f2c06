"""From the arguments of a command to its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from precast._cli import status
from precast._cli.parser import make_parser
from precast._load import probe
from precast.errors import KernelError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the statuses are those of :mod:`precast._cli.status`. Wrong usage raises SystemExit(2)."""
    options = make_parser().parse_args(argv)
    try:
        probe.read_settings()
    except KernelError as error:
        return _say(error, status.USAGE)
    try:
        result: int = options.run(options)
        sys.stdout.flush()
    except KernelError as error:
        return _say(error, status.FAILED)
    except KeyboardInterrupt:
        return status.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has had enough: `precast list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status.GOOD
    return result


def _say(error: KernelError, code: int) -> int:
    print(f"precast: {type(error).__name__}: {error}", file=sys.stderr)
    return code
