"""The command line: ``precast doctor`` and ``python -m precast doctor``; docs/reference/cli.md has the other verbs."""

import sys

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Runs one command, by default that of this process; then no module of the current directory is imported."""
    if argv is None:
        from precast._builder import python

        python.leave_here()
    from precast._cli.main import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
