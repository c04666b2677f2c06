"""``precast doctor``: show on one screen whether every kernel for this machine is ready."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from precast._builder.catalogue import Family
from precast._cli import deep, details, fault, names, output, problem, screen, status
from precast._load import probe, report, system
from precast.compat import loaders
from precast.errors import KernelError
from precast.extension.families import FamilyExtension

if TYPE_CHECKING:
    from precast._cli.names import Verbs

_LOADABLE = status.LOADABLE


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor", help="print whether all kernels for this machine are ready, which must be built, and any problem"
    )
    parser.add_argument(
        "kernels", nargs="*", type=names.kernel("doctor"), metavar="KERNEL", help="only these kernels; default: all"
    )
    parser.add_argument("--verbose", action="store_true", help="also print every problem, file, compiler and rejection")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; docs/reference/doctor.md describes it"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also build and load every kernel in a child process, and check one result of each op",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report; return 0 only if every kernel that this machine should have can be loaded."""
    try:
        facts = examine(options.kernels, deeply=options.deep)
    except KernelError as error:
        return fault.diagnose(error, as_json=options.json)
    if options.json:
        output.print_json(facts)
    else:
        output.say(to_text(facts, output.painter(probe.read_settings()), verbose=options.verbose))
    return status.GOOD if facts["ok"] else status.NO


def examine(kernels: Iterable[str] = (), *, deeply: bool = False) -> dict[str, Any]:
    """The doctor's report as plain JSON. It builds and loads nothing, and needs neither torch nor a GPU.

    With ``deeply``, a child process loads every kernel that can be loaded here and checks its numbers.
    """
    settings = probe.read_settings()
    examination = report.Examination(settings)
    wanted = names.families(kernels)
    told = [
        _kernel(examination, cls(), family)
        for cls in loaders.with_kernels()
        for family in cls.families
        if family in wanted
    ]
    checks = deep.examine(_loadable(told)) if deeply else None
    facts: dict[str, Any] = {
        "schema": fault.SCHEMA,
        "ok": True,
        "environment": report.environment_line(examination),
        "host": report.describe_host(examination),
        "build": report.describe_build(examination),
        "settings": report.describe_settings(settings),
        "variables": report.describe_variables(),
        "kernels": told,
        "deep": checks,
    }
    return {**facts, "ok": facts["host"]["system"] == "Linux" and not problem.find(facts)}


def to_text(facts: dict[str, Any], paint: output.Paint = output.plain, *, verbose: bool = False) -> str:
    """The same as readable text."""
    if facts["host"]["system"] != "Linux":
        return f"{facts['environment']}\n\n{system.only_linux(facts['host']['system'])}"
    return details.to_text(facts, paint) if verbose else screen.to_text(facts, paint)


def _loadable(kernels: list[dict[str, Any]]) -> list[tuple[Family, str]]:
    """The families for the deep check, each once per device."""
    found = [(kernel["family"], kernel["device"]) for kernel in kernels if kernel["verdict"] in (*_LOADABLE, "partly")]
    return [(names.families([family])[0], device) for family, device in dict.fromkeys(found)]


def _kernel(examination: report.Examination, extension: FamilyExtension, family: Family) -> dict[str, Any]:
    facts = {
        "extension": extension.name,
        "family": family.name,
        "device": extension.device,
        "priority": extension.priority,
    }
    if extension.machine not in (None, examination.host.machine):
        return {**facts, "expected": False, **report.NOT_HERE}
    expected = extension.device == "cpu" or examination.has_gpu
    found = report.describe_kernel(examination, family, extension.device)
    if not expected and found["verdict"] == "refused":
        found["verdict"] = report.NOT_HERE["verdict"]
    return {**facts, "expected": expected, **found}
