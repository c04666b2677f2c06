"""The command line: ``python -m precast doctor`` and ``precast doctor``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from precast._version import __version__
from precast.errors import KernelError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 good, 1 not every kernel can be loaded, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="precast", description="Prebuilt PyTorch kernels.")
    parser.add_argument("--version", action="version", version=f"precast {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what would be loaded on this machine, and why; loads nothing")
    doctor.add_argument("--json", action="store_true", help="one JSON object, as described in docs/reference/doctor.md")
    options = parser.parse_args(argv)
    try:
        from precast import _doctor

        return _doctor.run(as_json=options.json)
    except KernelError as error:
        print(f"precast: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
