"""``precast doctor --verbose``: every problem, the whole machine, and why each candidate was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from precast._cli import output, screen
from precast.core import explain
from precast.core.reasons import Reason, Rejection

Json = dict[str, Any]


def to_text(facts: Json, paint: output.Paint = output.plain) -> str:
    lines = [*screen.verdict(facts, paint, everything=True), "", facts["environment"]]
    lines += [*_build_lines(facts["build"]), *_host_lines(facts["host"])]
    lines += [f"  variable  {name}={value}" for name, value in facts["variables"].items()]
    lines += ["", *_table(facts["kernels"]), *_why(facts["kernels"])]
    if facts["deep"] is not None:
        rows = [("op", "device", "numbers"), *((c["op"], c["device"], c["wrong"] or "right") for c in facts["deep"])]
        lines += ["", *output.table(rows)]
    return "\n".join(lines)


def _build_lines(build: Json) -> list[str]:
    label = f"+{build['label']}" if build["label"] else ""
    commit = f", commit {build['commit'][:12]}{' with changes' if build['dirty'] else ''}" if build["commit"] else ""
    lines = [f"  build     {build['version']}{label}, {build['mode'] or 'no manifest'}{commit}"]
    files = len(build["host_files"]), len(build["device_files"])
    lines.append(f"  files     {files[0]} host libraries, {files[1]} device images")
    if build["note"]:
        lines.append(f"  note      {build['note']}")
    if build["fix"]:
        lines.append(f"  fix       {build['fix']}")
    if build["manifest_error"]:
        lines += [f"  manifest  {line}" for line in build["manifest_error"].splitlines()]
    return lines


def _host_lines(host: Json) -> list[str]:
    lines = [f"  torch     {host['torch_error']}"] if host["torch_error"] else []
    if host["torch"] and host["torch"]["hip"]:
        lines.append("  rocm      torch is a ROCm build, which CUDA kernels cannot serve")
    lines += [f"  gpu {gpu['index']}     {gpu['capability']} {gpu['name']}" for gpu in host["gpus"]]
    if host["gpu_note"]:
        lines.append(f"  gpus      {host['gpu_note']}")
    compiler, nvrtc, cache = host["compiler"], host["nvrtc"], host["cache"]
    lines.append(f"  compiler  {compiler['path'] + ': ' + compiler['version'] if compiler else 'none'}")
    lines.append(f"  ninja     {host['ninja'] or 'none'}")
    lines.append(f"  nvrtc     {nvrtc['path'] + ': ' + nvrtc['version'] if nvrtc else 'none'}")
    full = f", {cache['entries']} entries, {output.size(cache['bytes'])}" if cache["entries"] else ""
    lines.append(f"  cache     {cache['path'] or 'none'}{full}{'' if cache['writable'] else ' (cannot be written)'}")
    lines += [f"  looked    {place}" for place in host["looked_at"]]
    return lines + [f"  lock      {lock['name']}: held by {lock['holder']}" for lock in cache["locks"]]


def _table(kernels: list[Json]) -> list[str]:
    rows = [("extension", "family", "device", "priority", "verdict", "source")]
    for kernel in kernels:
        source = "; ".join(f"{piece['piece']}: {piece['source']} {piece['what']}" for piece in kernel["pieces"])
        verdict = kernel["verdict"] + ("" if kernel["expected"] or not source else " (not expected)")
        cells = (kernel["extension"], kernel["family"], kernel["device"], str(kernel["priority"]), verdict, source)
        rows.append(cells)
    return output.table(rows)


def _why(kernels: list[Json]) -> list[str]:
    """Why candidates were rejected; kernels with the same reasons are grouped."""
    alike: dict[tuple[object, ...], list[Json]] = {}
    for kernel in kernels:
        if kernel["expected"] and (kernel["rejections"] or kernel["notes"]):
            reasons = [tuple(item.values()) for item in kernel["rejections"]]
            alike.setdefault((*reasons, *kernel["notes"]), []).append(kernel)
    lines: list[str] = []
    for same in alike.values():
        devices: dict[str, list[str]] = {}
        for kernel in same:
            devices.setdefault(kernel["device"], []).append(kernel["family"])
        lines += ["", *(f"{', '.join(families)} for {device}:" for device, families in devices.items())]
        lines += [f"  {line}" for line in explain.rejection_lines(_rejections(same[0]["rejections"]))]
        lines += [f"  note  {note}" for note in same[0]["notes"]]
    return lines


def _rejections(items: Sequence[Json]) -> list[Rejection]:
    fields = ("piece", "candidate", "needed", "found", "fix")
    return [Rejection(reason=Reason(item["reason"]), **{name: item[name] for name in fields}) for item in items]
