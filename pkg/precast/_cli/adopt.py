"""``precast adopt``: try :func:`precast.adopt` on a model, measure the model, or check a saved report."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precast._abi import fixes
from precast._cli import output, status
from precast._load import probe
from precast.errors import KernelError

if TYPE_CHECKING:
    from precast._cli.names import Verbs

_TARGET = "TARGET is MODULE:NAME of a function that returns the model, or of a model class of transformers, built small"


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("adopt", help="try precast.adopt on a model, or check a saved report")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dry-run", metavar="TARGET", help=f"adopt a model and print the report; {_TARGET}")
    what.add_argument("--measure", metavar="TARGET", help="like --dry-run; also print the speed before and after")
    what.add_argument(
        "--check", type=Path, metavar="FILE", help="compare a saved report.json() with the versions and sources here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Return 0 if the report is good, or still valid; return 1 otherwise, also if nothing could be compared."""
    _require_torch()
    from precast._adopt import command

    if options.check is not None:
        return _check(options.check, as_json=options.json)
    sys.path.append(str(Path.cwd()))  # the caller names a module of theirs; none of another name is found here first
    from precast._adopt.run import adopt

    model = command.build(options.dry_run or options.measure)
    report = adopt(model, dry_run=options.measure is None)
    speeds = command.measure(model) if options.measure and report.replaced and report.ok else ()
    if options.json:
        output.say(report.json())
    else:
        rows = [(s.what, f"{s.before:,.0f}", f"{s.after:,.0f} {s.unit}", f"{s.after / s.before:.2f}x") for s in speeds]
        output.say("\n".join([str(report), *(output.table([("", "before", "after", ""), *rows]) if rows else [])]))
    return status.GOOD if report.ok else status.NO


def _require_torch() -> None:
    """Raise KernelError if torch cannot be imported."""
    host = probe.probe_host(probe.read_settings(), gpus=False)
    if host.torch is None:
        raise KernelError(fixes.needs_torch("a model", replace(host, installer=probe.probe_installer())))


def _check(path: Path, *, as_json: bool) -> int:
    from precast._adopt import command
    from precast._adopt.report import parse

    try:
        report = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KernelError(
            f"{path} cannot be checked",
            found=str(error),
            needed="the JSON of a report of precast.adopt()",
            fix=f"in Python: open({str(path)!r}, 'w').write(precast.adopt(model).json())",
        ) from error
    drift = command.drift(report)
    if as_json:
        output.print_json({"schema": 1, "ok": report.ok and not drift, "drift": list(drift)})
    elif drift:
        output.say("\n".join([f"{path} does not hold here:", *(f"  {line}" for line in drift)]))
        output.say("  fix     1) run precast.adopt(model) again")
    else:
        output.say(f"{path} holds here" if report.ok else f"{path} was never good: {report.why_not}")
    return status.GOOD if report.ok and not drift else status.NO
