"""``precast xray FILE``: what a wheel, folder or library needs and holds, and whether it works on a machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import alternatives, torch_names, verdicts, xray, xray_problems, xray_verdict
from precast._cli import output, status
from precast.core.capability import ComputeCapability
from precast.core.version import Release, TorchVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from precast._builder.xray import Contents, Library
    from precast._cli.names import Verbs

_SHOWN = 3  # names that a torch lacks


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("xray", help="read what any wheel needs and holds, and whether it works; imports nothing")
    parser.add_argument("file", type=Path, metavar="FILE", help="a wheel, a folder or a shared library")
    for name, parse, example in (
        ("torch", TorchVersion.parse, "2.13.0 or 2.13.0+cu130"),
        ("gpu", ComputeCapability.parse, "a compute capability, such as 9.0"),
        ("driver", verdicts.driver_version, "580, or the CUDA version that it supports"),
        ("python", Release.parse, "3.12"),
        ("glibc", Release.parse, "2.28"),
    ):
        help_text = f"a machine with it: {example}"
        parser.add_argument(f"--{name}", type=_checked(parse), metavar=name.upper(), help=help_text)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what was read; return 1 if something is wrong with the file, or a library does not work there."""
    machine = verdicts.Machine(options.torch, options.gpu, options.driver, options.python, options.glibc)
    facts = examine(xray.read(options.file), machine)
    if options.json:
        output.print_json(facts)
    else:
        output.say(to_text(facts))
    return status.GOOD if not facts["problems"] and facts["answer"] != "no" else status.NO


def examine(contents: Contents, machine: verdicts.Machine) -> dict[str, Any]:
    """Everything as plain JSON. ``answer`` is None if no machine was named."""
    asked = machine != verdicts.Machine()
    libraries = [_library(contents, one, machine if asked else None) for one in contents.libraries]
    problems = [
        {"check": one.check, "where": one.where, "wanted": one.wanted, "found": one.found}
        for one in xray_problems.problems(contents)
    ]
    whole = xray_verdict.overall(contents, machine)
    return {
        "schema": 2,
        "file": contents.name,
        "answer": whole.answer if asked else None,
        "why": list(whole.why) if asked else [],
        "works_by": list(whole.by) if asked else [],
        "stated_torch": None if contents.stated is None else str(contents.stated),
        "images": [str(image) for image in contents.images],
        "alternatives": [
            {"libraries": [one.path for one in group.libraries], "why": group.why}
            for group in alternatives.groups(contents)
            if len(group.libraries) > 1
        ],
        "libraries": libraries,
        "problems": problems,
    }


def to_text(facts: dict[str, Any]) -> str:
    """The same as readable text."""
    lines = [f"{facts['file']}: {output.count(len(facts['libraries']), 'library', 'libraries')}"]
    if facts["stated_torch"]:
        lines.append(f"  its metadata say torch {facts['stated_torch']}")
    if facts["images"]:
        lines.append(f"  device code behind a manifest: {' '.join(facts['images'])}")
    for group in facts["alternatives"]:
        lines.append(f"  one is enough of {', '.join(group['libraries'])}: {group['why']}")
    for library in facts["libraries"]:
        lines += ["", library["path"]]
        lines += [f"  {line}" for line in output.table(list(_rows(library)))]
    for one in facts["problems"]:
        lines += [
            "",
            f"problem  {one['check']}: {one['where']}",
            f"  wanted  {one['wanted']}",
            f"  found   {one['found']}",
        ]
    if facts["answer"] is not None:
        by = f" by {', '.join(facts['works_by'])}" if facts["works_by"] else ""
        lines += ["", f"on that machine: {_ANSWERS[facts['answer']]}{by}", *(f"  {why}" for why in facts["why"])]
    return "\n".join(lines)


_ANSWERS = {
    "yes": "works",
    "no": "does not work",
    "unknown": "nothing known is against it, but not everything is known",
}


def _library(contents: Contents, one: Library, machine: verdicts.Machine | None) -> dict[str, Any]:
    alone = one.listed is None or bool(one.listed.families)  # an adapter is judged with its library
    verdict = xray_verdict.judge(contents, one, machine) if machine is not None and alone else None
    missing = one.missing() if one.needs_torch else {}
    return {
        "path": one.path,
        "module": one.module if one.is_module else None,
        "machine": one.info.machine,
        "torch": None
        if not one.needs_torch
        else {
            "kind": "classic" if one.bound.classic else "stable" if one.shims else "linked",
            "cxx11": one.cxx11,
            "names": sum(map(torch_names.is_recorded, one.info.undefined)),
            "releases": [str(release) for release, names in missing.items() if not names],
            "missing": {str(release): list(names) for release, names in missing.items() if names},
        },
        "python": one.python,
        "glibc": ".".join(map(str, one.info.glibc)) or None,
        "glibcxx": ".".join(map(str, one.info.glibcxx)) or None,
        "needed": list(one.info.needed),
        "cuda_runtime": one.bound.cudart,
        "min_driver": str(min(code.min_driver for code in one.code)) if one.code else None,
        "gpus": [{"target": str(code.target), "min_driver": str(code.min_driver)} for code in one.code],
        "cpu": {"required": list(one.cpu.required), "chosen": list(one.cpu.chosen)},
        "verdict": None if verdict is None else {"answer": verdict.answer, "why": list(verdict.why)},
    }


def _rows(library: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("torch", _torch(library["torch"])), ("Python", library["python"]), ("machine", library["machine"])]
    rows.append(("C library", f"glibc {library['glibc'] or 'any'}, libstdc++ GLIBCXX_{library['glibcxx'] or '3.4'}"))
    if library["gpus"] or library["cuda_runtime"]:
        runtime = library["cuda_runtime"]
        driver = f", a driver for CUDA {library['min_driver']}" if library["min_driver"] else ""
        rows.append(("CUDA", f"{'no libcudart' if runtime is None else f'libcudart.so.{runtime}'}{driver}"))
    if library["gpus"]:
        rows.append(("GPUs", " ".join(one["target"] for one in library["gpus"])))
    rows += [(f"CPU, {how}", " ".join(library["cpu"][how])) for how in ("required", "chosen") if library["cpu"][how]]
    if library["verdict"]:
        rows.append(("verdict", library["verdict"]["answer"]))
        rows += [("", why) for why in library["verdict"]["why"]]
    return rows


def _torch(torch: dict[str, Any] | None) -> str:
    if torch is None:
        return "not needed"
    abi = "" if torch["cxx11"] is None else f", cxx11 ABI {int(torch['cxx11'])}"
    said = f"{torch['kind']}, {output.count(torch['names'], 'name')}{abi}: "
    if torch["releases"]:
        return f"{said}{' '.join(torch['releases'])} have them all"
    nearest, lacking = min(torch["missing"].items(), key=lambda item: len(item[1]))
    return f"{said}no known torch has them all; {nearest} lacks {', '.join(lacking[:_SHOWN])}"


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The argparse type for a value with a parser, whose error it prints."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
