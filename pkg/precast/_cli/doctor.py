"""``precast doctor``: one page, or one JSON object, on what would be loaded on this machine and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from precast._build.catalogue import Family
from precast._cli import deep, names, output, status
from precast._load import probe, report, system
from precast.extension import builtin
from precast.extension.families import FamilyExtension

if TYPE_CHECKING:
    from precast._cli.names import Verbs

SCHEMA = 1
_LOADABLE = status.LOADABLE


def add(verbs: Verbs) -> None:
    """The arguments."""
    parser = verbs.add_parser("doctor", help="what would be loaded on this machine, and why; loads nothing")
    parser.add_argument("kernels", nargs="*", type=names.kernel, metavar="KERNEL", help="only these; by default all")
    parser.add_argument("--json", action="store_true", help="one JSON object, as docs/reference/doctor.md describes it")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also load every kernel, building what is missing, and check one result of each op, in a child process",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the report; 0 only if every kernel that this machine should have can be loaded."""
    facts = examine(options.kernels, deeply=options.deep)
    if options.json:
        output.print_json(facts)
    else:
        output.say(to_text(facts))
    return status.GOOD if facts["ok"] else status.NO


def examine(kernels: Iterable[str] = (), *, deeply: bool = False) -> dict[str, Any]:
    """Everything the doctor says, as plain JSON. Builds and loads nothing, and needs neither torch nor a GPU.

    Unless ``deeply``: then every kernel that can be loaded here is, in a child process, and its numbers are checked.
    """
    settings = probe.read_settings()
    examination = report.Examination(settings)
    wanted = names.families(kernels)
    told = [
        _kernel(examination, cls(), family)
        for cls in builtin.main_rows()
        for family in cls.families
        if family in wanted
    ]
    checks = deep.examine(_loadable(told)) if deeply else None
    resolved = all(kernel["verdict"] in _LOADABLE for kernel in told if kernel["expected"])
    return {
        "schema": SCHEMA,
        "ok": resolved and all(check["ok"] for check in checks or ()),
        "environment": report.environment_line(examination),
        "host": report.describe_host(examination),
        "build": report.describe_build(examination),
        "settings": report.describe_settings(settings),
        "variables": report.describe_variables(),
        "kernels": told,
        "deep": checks,
    }


def to_text(facts: dict[str, Any]) -> str:
    """The same for people."""
    if facts["host"]["system"] != "Linux":
        return f"{facts['environment']}\n\n{system.only_linux(facts['host']['system'])}"
    lines = [facts["environment"], *_build_lines(facts["build"]), *_host_lines(facts["host"])]
    if facts["settings"]:
        lines.append("  settings  " + ", ".join(f"{name}={value}" for name, value in facts["settings"].items()))
    lines += [f"  variable  {name}={value}" for name, value in facts["variables"].items()]
    lines += ["", *_table(facts["kernels"])]
    for kernel in facts["kernels"]:
        if kernel["expected"] and (kernel["rejections"] or kernel["error"] or kernel["notes"]):
            lines += ["", *_kernel_lines(kernel)]
    lines += _deep_lines(facts["deep"]) if facts["deep"] is not None else []
    right = " and computes what it should" if facts["deep"] is not None else ""
    good = f"every kernel this machine should have can be loaded{right}"
    bad = f"not every kernel this machine should have can be loaded{right}"
    return "\n".join([*lines, "", good if facts["ok"] else bad])


def _loadable(kernels: list[dict[str, Any]]) -> list[tuple[Family, str]]:
    """The families to be loaded in depth, each once per device."""
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


def _build_lines(build: dict[str, Any]) -> list[str]:
    label = f"+{build['label']}" if build["label"] else ""
    commit = f", commit {build['commit'][:12]}{' with changes' if build['dirty'] else ''}" if build["commit"] else ""
    lines = [f"  build     {build['version']}{label}, {build['mode'] or 'no manifest'}{commit}"]
    files = len(build["host_files"]), len(build["device_files"])
    lines.append(f"  files     {files[0]} host libraries, {files[1]} device files")
    if build["note"]:
        lines.append(f"  note      {build['note']}")
    if build["remedy"]:
        lines.append(f"  fix       {build['remedy']}")
    if build["manifest_error"]:
        lines += [f"  manifest  {line}" for line in build["manifest_error"].splitlines()]
    return lines


def _host_lines(host: dict[str, Any]) -> list[str]:
    lines = [f"  torch     {host['torch_error']}"] if host["torch_error"] else []
    if host["torch"] and host["torch"]["hip"]:
        lines.append(
            "  rocm      torch is a ROCm build, which CUDA kernels cannot serve; Triton kernels stand in for them"
        )
    lines += [f"  gpu {gpu['index']}     {gpu['capability']} {gpu['name']}" for gpu in host["gpus"]]
    if host["gpu_note"]:
        lines.append(f"  gpus      {host['gpu_note']}")
    compiler, nvrtc, cache = host["compiler"], host["nvrtc"], host["cache"]
    lines.append(f"  compiler  {compiler['path'] + ': ' + compiler['version'] if compiler else 'none'}")
    lines.append(f"  ninja     {host['ninja'] or 'none'}")
    lines.append(f"  nvrtc     {nvrtc['path'] + ': ' + nvrtc['version'] if nvrtc else 'none'}")
    full = f", {cache['entries']} entries, {output.size(cache['bytes'])}" if cache["entries"] else ""
    lines.append(f"  cache     {cache['path'] or 'none'}{full}{'' if cache['writable'] else ' (cannot be written)'}")
    return lines + [f"  lock      {lock['name']}: held by {lock['holder']}" for lock in cache["locks"]]


def _table(kernels: list[dict[str, Any]]) -> list[str]:
    rows = [("extension", "family", "device", "priority", "verdict", "source")]
    for kernel in kernels:
        source = "; ".join(f"{piece['piece']}: {piece['source']} {piece['what']}" for piece in kernel["pieces"])
        verdict = kernel["verdict"] + ("" if kernel["expected"] or not source else " (not expected)")
        cells = (kernel["extension"], kernel["family"], kernel["device"], str(kernel["priority"]), verdict, source)
        rows.append(cells)
    return output.table(rows)


def _deep_lines(checks: list[dict[str, Any]]) -> list[str]:
    rows = [("op", "device", "numbers"), *((c["op"], c["device"], c["wrong"] or "right") for c in checks)]
    return ["", *output.table(rows)]


def _kernel_lines(kernel: dict[str, Any]) -> list[str]:
    lines = [f"{kernel['family']} for {kernel['device']} ({kernel['extension']}):"]
    if kernel["error"]:
        return lines + [f"  {line}" for line in kernel["error"].splitlines()]
    for item in kernel["rejections"]:
        lines.append(
            f"  {item['piece']}  {item['candidate']}  {item['reason']}: wanted {item['wanted']}; found {item['found']}"
        )
    return lines + [f"  note  {note}" for note in kernel["notes"]]
