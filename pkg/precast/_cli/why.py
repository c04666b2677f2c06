"""``precast why KERNEL``: trace one decision, and on a cache miss show what differs from the nearest build."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from precast._builder.catalogue import Family
from precast._cli import names, output, status
from precast._load import cached, probe, report
from precast.errors import KernelError

if TYPE_CHECKING:
    from precast._cli.names import Verbs
    from precast.kernel_loader import KernelLoader

_SHOWN = 10  # differences; otherwise a changed torch header would fill the screen
_VALUE = 60


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "why", help="print which file of one kernel would be loaded, and why other files are rejected; loads nothing"
    )
    parser.add_argument(
        "kernel",
        type=names.kernel("why"),
        metavar="KERNEL",
        help="a public name such as silu_and_mul, FusedAdamW or CPUAdamLoader, or a family, op or extension",
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "xpu"), help="only for this device type")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the trace; return 0 if the kernel can be loaded for every requested device."""
    facts = examine(options.kernel, options.device)
    if options.json:
        output.print_json(facts)
    else:
        output.say(to_text(facts))
    return status.GOOD if facts["ok"] else status.NO


def examine(kernel: str, device: str | None) -> dict[str, Any]:
    """The trace as plain JSON. A device that was not requested and is absent is shown, but does not count."""
    examination = report.Examination(probe.read_settings())
    traces = [
        _trace(examination, family, kind)
        for family in names.families([kernel])
        for kind in (family.devices if device is None else (device,))
        if kind in (*family.devices, *family.plain)
    ]
    known = [_loader(loader) for loader in names.loaders(kernel)]
    counted = [t for t in traces if device is not None or t["device"] == "cpu" or examination.has_gpu]
    return {
        "schema": 1,
        "ok": all(trace["verdict"] in status.LOADABLE for trace in counted)
        and (bool(counted) or (device is None and _serves(known))),
        "environment": report.environment_line(examination),
        "traces": traces,
        "loaders": known,
    }


def to_text(facts: dict[str, Any]) -> str:
    """The same as readable text."""
    lines = [facts["environment"]]
    for trace in facts["traces"]:
        lines += ["", f"{trace['family']} on {trace['device']}: {trace['verdict']}"]
        lines += [f"  {piece['piece']}  {piece['source']}  {piece['what']}" for piece in trace["pieces"]]
        for item in trace["rejections"]:
            lines.append(f"  {item['piece']}  {item['candidate']}  passed over ({item['reason']})")
            lines += [f"      needed  {item['needed']}", f"      found   {item['found']}"]
            lines += [f"      fix     {item['fix']}"] if item["fix"] else []
        lines += [f"  note  {note}" for note in trace["notes"]]
        for piece in trace["cache"]:
            lines += _cache_lines(piece)
        if trace["error"] and not trace["rejections"]:
            lines += [f"  {line}" for line in trace["error"].splitlines()]
    for loader in facts["loaders"]:
        lines += ["", f"{loader['loader']}: {loader['taken'] or 'nothing'} would be loaded"]
        rows = [(c["name"], c["backend"], str(c["priority"]), c["from"], _state(c)) for c in loader["extensions"]]
        lines += [f"  {line}" for line in output.table([("extension", "backend", "priority", "from", "state"), *rows])]
    return "\n".join(lines)


def _state(candidate: dict[str, Any]) -> str:
    reason = ": ".join(line.strip() for line in candidate["reason"].splitlines()[:2])
    return f"{candidate['state']}{': ' if reason else ''}{reason}"


def _loader(loader: type[KernelLoader]) -> dict[str, Any]:
    """The extensions of a loader, best first, and the one it would load."""
    found = loader.candidates()
    extensions = [
        {"name": c.name, "backend": c.backend, "priority": c.priority, "from": c.origin, "state": c.state}
        | {"reason": c.reason}
        for c in found
    ]
    taken = next((c.name for c in found if c.state == "ready"), None)
    return {"loader": loader.__name__, "taken": taken, "extensions": extensions}


def _serves(loaders: list[dict[str, Any]]) -> bool:
    return bool(loaders) and all(loader["taken"] is not None for loader in loaders)


def _trace(examination: report.Examination, family: Family, device: str) -> dict[str, Any]:
    choice = examination.choice(family, device)
    kept = [] if isinstance(choice, KernelError) else cached.describe(family, choice)
    found = report.describe_kernel(examination, family, device)
    return {"family": family.name, "device": device, **found, "cache": kept}


def _cache_lines(piece: dict[str, Any]) -> list[str]:
    head = f"  {piece['piece']}  cache"
    if piece["state"] == "hit":
        return [f"{head} hit: {piece['path']}"]
    lines = [f"{head} miss: {piece['key']}"]
    lines += [f"      {piece['note']}"] if piece["note"] else []
    near = piece["nearest"]
    if near is None:
        return [*lines, "      nothing like it was built here before"]
    lines.append(f"      the nearest entry, {near['entry']}, differs in:")
    alike: dict[tuple[str | None, str | None], list[str]] = {}
    for item in near["differs"]:
        alike.setdefault((item["needed"], item["found"]), []).append(item["input"])
    for (wanted, found), inputs in list(alike.items())[:_SHOWN]:
        others = f" and {len(inputs) - 1} more alike" if len(inputs) > 1 else ""
        lines.append(f"        {inputs[0]}{others}: needed {_short(wanted)}; found {_short(found)}")
    return [*lines, "        and others (--json has them all)"] if len(alike) > _SHOWN else lines


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}..."
