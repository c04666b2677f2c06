"""The command line: ``precast doctor`` and ``python -m precast doctor``; docs/reference/cli.md has the other verbs."""

import sys

from precast.errors import KernelError

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Runs one command, by default that of this process, and imports no module of the current directory."""
    if argv is None:
        from precast._builder import python

        python.leave_here()
        python.ignore_missing_numpy()
    try:
        from precast._cli.main import main as run
    except KernelError as error:  # nothing says which kernels there are
        from precast._cli import fault

        return fault.tell(sys.argv[1:] if argv is None else argv, error)
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
