"""The doctor on one screen: the verdict, then the machine in a few lines, then one line for each group of kernels."""

from __future__ import annotations

from typing import Any

from precast._builder import catalogue
from precast._builder.catalogue import FAMILIES
from precast._cli import output, problem
from precast._cli.problem import Problem

Json = dict[str, Any]

READY = "OK: all kernels for this machine are ready"
ASKED_FOR = "OK: the kernels that were asked for are ready"
# Seconds to build the library of a family, which all devices share, and its device code: two cores, g++ 12.2, NVRTC 13.
_HOST_S, _DEVICE_S = 2, 1
_PROBLEM_LINES = 10  # limit for the first problem; --verbose shows all
_WIDTH = 110  # columns for the line of settings

# Worst first, because a row shows the worst of its kernels. The second word is the colour.
_CELLS = {
    "refused": ("none", "red"),
    "partly": ("not on every GPU", "red"),
    "torch": ("plain torch", "yellow"),
    "jit": ("at first use", "yellow"),
    "cached": ("cached", "green"),
    "prebuilt": ("prebuilt", "green"),
    "not-here": ("-", ""),
}
_MODES = {
    "release": "release wheel",
    "machine": "built for this machine",
    "pure": "pure wheel",
    None: "no manifest",
}


def to_text(facts: Json, paint: output.Paint = output.plain) -> str:
    lines = [*verdict(facts, paint), "", *_facts(facts), "", *_rows(facts["kernels"], paint)]
    return "\n".join(lines)


def verdict(facts: Json, paint: output.Paint, *, everything: bool = False) -> list[str]:
    """``OK: ...``, or the first problem with its fix; with ``everything``, all problems."""
    found = problem.find(facts)
    if not found:
        return [paint(_good(facts), "green")]
    lines: list[str] = []
    for number, one in enumerate(found if everything else found[:1], start=1):
        count = f" {number} of {len(found)}" if len(found) > 1 else ""
        lines.append(paint(f"PROBLEM{count}: {one.headline}", "red"))
        lines += _body(one, len(one.lines) if everything else _PROBLEM_LINES)
    return lines if everything or len(found) == 1 else [*lines, "  more    precast doctor --verbose"]


def _good(facts: Json) -> str:
    """The verdict if there is no problem."""
    checks = facts["deep"]
    every = {kernel["family"] for kernel in facts["kernels"]} == {family.name for family in FAMILIES}
    missing = [kernel for kernel in facts["kernels"] if kernel["expected"] and _state(kernel) == "jit"]
    if missing and not checks:  # a deep check has built what was missing
        return _unbuilt(missing, every=every)
    ready = READY if every else ASKED_FOR
    return f"{ready}, and {len(checks)} of {len(checks)} results are right" if checks else ready


def _unbuilt(missing: list[Json], *, every: bool) -> str:
    """The verdict if a first call would compile, with the command that compiles now."""
    families = list(dict.fromkeys(kernel["family"] for kernel in missing))
    command = " ".join(("precast warm", *([] if every else families)))
    seconds = _HOST_S * len(families) + _DEVICE_S * sum(kernel["device"] == "cuda" for kernel in missing)
    what = output.count(len(families), "kernel family", "kernel families")
    return f"OK, but {what} will be built at first use (about {seconds} s): {command}"


def _state(kernel: Json) -> str:
    """The verdict, or ``cached`` if the build cache has all that would be built."""
    return "cached" if kernel["verdict"] == "jit" and kernel["cached"] else str(kernel["verdict"])


def _body(one: Problem, limit: int) -> list[str]:
    """The lines below the headline. The fixes come last and are never cut."""
    lines = one.lines[1:]
    fix = next((number for number, line in enumerate(lines) if line.startswith("  fix ")), len(lines))
    room = max(limit - (len(lines) - fix), 1)
    return [*lines[: min(fix, room)], *(["  ..."] if fix > room else []), *lines[fix:]]


def _facts(facts: Json) -> list[str]:
    """The machine and the installation: at most eleven lines."""
    build, host, cache = facts["build"], facts["host"], facts["host"]["cache"]
    label = f"+{build['label']}" if build["label"] else ""
    hosts, devices = len(build["host_files"]), len(build["device_files"])
    files = ""
    if hosts or devices:
        files = f": {output.count(hosts, 'host library', 'host libraries')}, {output.count(devices, 'device image')}"
    rows = [
        ("precast", f"{build['version']}{label}, {_MODES[build['mode']]}{files}"),
        ("note", build["note"]),
        ("fix", build["fix"]),
        ("torch", _torch(host)),
        ("gpu", _gpus(host)),
        ("note", host["gpu_note"]),
        ("python", f"{host['python']}, {host['system']} {host['machine']}, glibc {host['glibc'] or 'unknown'}"),
        ("build", _builders(host)),
        ("cache", _cache(cache)),
        ("set", _short(", ".join(f"{name}={value}" for name, value in facts["variables"].items()))),
    ]
    return [f"  {name:<8}{text}" for name, text in rows if text]


def _torch(host: Json) -> str:
    torch = host["torch"]
    if torch is None:
        return f"cannot be imported: {_short(host['torch_error'])}" if host["torch_error"] else "not installed"
    if torch["hip"]:
        return f"{torch['version']} for ROCm {torch['hip']}, which CUDA kernels cannot serve"
    return f"{torch['version']}, {'CUDA ' + torch['cuda'] if torch['cuda'] else 'no CUDA'}"


def _gpus(host: Json) -> str:
    driver = f"driver for CUDA {host['driver']}" if host["driver"] else "no NVIDIA driver"
    alike: dict[str, list[int]] = {}
    for gpu in host["gpus"]:
        alike.setdefault(f"{gpu['name']}, compute capability {gpu['capability']}", []).append(gpu["index"])
    shown = [f"{' '.join(map(str, indices))}: {what}" for what, indices in alike.items()]
    return "; ".join([*(shown or ["none visible"]), driver])


def _builders(host: Json) -> str:
    compiler, nvrtc = host["compiler"], host["nvrtc"]
    return ", ".join(
        (
            f"{compiler['kind']} {compiler['version']}" if compiler else "no C++ compiler",
            "ninja" if host["ninja"] else "no ninja",
            f"NVRTC {nvrtc['version']}" if nvrtc else "no NVRTC",
        )
    )


def _cache(cache: Json) -> str:
    full = (
        f", {output.count(cache['entries'], 'entry', 'entries')}, {output.size(cache['bytes'])}"
        if cache["entries"]
        else ""
    )
    busy = f", {output.count(len(cache['locks']), 'build')} running now" if cache["locks"] else ""
    return f"{cache['path'] or 'none'}{full}{busy}{'' if cache['writable'] else ' (cannot be written)'}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _rows(kernels: list[Json], paint: output.Paint) -> list[str]:
    """One row per folder of families, which share their public functions: forward and backward, for example."""
    cells: dict[str, dict[str, str]] = {}
    for kernel in kernels:
        row = cells.setdefault(catalogue.folder_of(kernel["family"]).name, {})
        before = row.get(kernel["device"], "not-here")
        row[kernel["device"]] = min(before, _state(kernel), key=list(_CELLS).index)
    width = max(len(name) for name in ("kernels", *cells)) + 2
    column = max(len(text) for text, _ in _CELLS.values()) + 2
    lines = [f"  {'kernels':<{width}}{'CPU':<{column}}GPU"]
    for name, row in cells.items():
        shown = [_CELLS[row.get(device, "not-here")] for device in ("cpu", "cuda")]
        (cpu, cpu_colour), (gpu, gpu_colour) = shown
        lines.append(f"  {name:<{width}}{paint(cpu, cpu_colour)}{' ' * (column - len(cpu))}{paint(gpu, gpu_colour)}")
    return lines
