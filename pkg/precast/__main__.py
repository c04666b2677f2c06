"""The command line: ``precast doctor`` and ``python -m precast doctor``; docs/reference/cli.md has the other verbs."""

from __future__ import annotations

import sys

from precast._cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
