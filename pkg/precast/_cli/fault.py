"""Reports an installation so damaged that no kernel can be examined.

The report does not read the catalogue of kernels, which may be damaged.
"""

from __future__ import annotations

from collections.abc import Sequence

from precast._cli import output, status
from precast.errors import KernelError

SCHEMA = 2


def tell(argv: Sequence[str], error: KernelError) -> int:
    """Print why a verb cannot begin; for the doctor, a report with only this problem."""
    if argv[:1] == ["doctor"]:
        return diagnose(error, as_json="--json" in argv)
    output.complain(f"{type(error).__name__}: {error}")
    return status.FAILED


def diagnose(error: KernelError, *, as_json: bool) -> int:
    """The doctor's report if an error ends the examination."""
    if as_json:
        output.print_json({"schema": SCHEMA, "ok": False, "error": str(error)})
    else:
        output.say(f"PROBLEM: {error}")
    return status.NO
