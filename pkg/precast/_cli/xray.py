"""``precast xray FILE``: print what a wheel, folder or library needs and holds, and whether it works on a machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast._builder import xray_report
from precast._builder.xray_report import PARTS, TorchUse, Xray, XrayLibrary
from precast._cli import output, status

if TYPE_CHECKING:
    from collections.abc import Callable

    from precast._cli.names import Verbs

_SHOWN = 3  # names that a torch lacks


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "xray", help="print the contents and requirements of any wheel, and whether it works; imports nothing"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a wheel, a folder or a shared library")
    for name, (parse, example) in PARTS.items():
        help_text = f"check against this {name}: {example}"
        parser.add_argument(f"--{name}", type=_checked(parse), metavar=name.upper(), help=help_text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the report; return 1 if the file is bad, or a library does not work on the named machine."""
    found = xray_report.xray(options.file, **{name: getattr(options, name) for name in PARTS})
    if options.json:
        output.print_json(to_json(found))
    else:
        output.say("\n".join(lines(found)))
    return status.GOOD if not found.problems and found.answer != "no" else status.NO


def to_json(found: Xray) -> dict[str, Any]:
    """The fields of the value, by name."""
    facts = {"schema": 4, **asdict(found)}
    for library in facts["libraries"]:
        if library["torch"]:
            library["torch"]["missing"] = dict(library["torch"]["missing"])
    return facts


def lines(found: Xray) -> Iterator[str]:
    """The same as readable text."""
    yield f"{found.file}: {output.count(len(found.libraries), 'library', 'libraries')}"
    if found.stated_torch:
        yield f"  its metadata say torch {found.stated_torch}"
    if found.core:
        yield f"  takes along the core of precast {found.core}"
    if found.patches_loader:
        yield "  patches torch.ops.load_library and importlib for the whole process"
    if found.images:
        yield f"  device code behind a manifest: {' '.join(found.images)}"
    for group in found.alternatives:
        yield f"  one is enough of {', '.join(group.libraries)}: {group.why}"
    for library in found.libraries:
        yield from ("", library.path, *(f"  {line}" for line in output.table(list(_rows(library)))))
    for word, some in (("problem", found.problems), ("warning", found.warnings)):
        for one in some:
            yield from (
                "",
                f"{word}  {one.reason}: {one.candidate}",
                f"  needed  {one.needed}",
                f"  found   {one.found}",
            )
    if found.answer is not None:
        by = f" by {', '.join(found.works_by)}" if found.works_by else ""
        yield from ("", f"on that machine: {_ANSWERS[found.answer]}{by}", *(f"  {why}" for why in found.why))


_ANSWERS = {
    "yes": "works",
    "no": "does not work",
    "unknown": "nothing known is against it, but not everything is known",
}


def _rows(library: XrayLibrary) -> Iterator[tuple[str, str]]:
    yield from (("torch", _torch(library.torch)), ("Python", library.python), ("machine", library.machine))
    yield "C library", f"glibc {library.glibc or 'any'}, libstdc++ GLIBCXX_{library.glibcxx or '3.4'}"
    if library.gpus or library.cuda_runtime:
        runtime = library.cuda_runtime
        driver = f", a driver for CUDA {library.min_driver}" if library.min_driver else ""
        yield "CUDA", f"{'no libcudart' if runtime is None else f'libcudart.so.{runtime}'}{driver}"
    if library.gpus:
        yield "GPUs", " ".join(one.target for one in library.gpus)
        yield from (("", line) for line in _compilers(library))
    for how, names in (("required", library.cpu.required), ("chosen", library.cpu.chosen)):
        if names:
            yield f"CPU, {how}", " ".join(names)
    if library.verdict:
        yield from (("verdict", library.verdict.answer), *(("", str(why)) for why in library.verdict.why))


def _compilers(library: XrayLibrary) -> Iterator[str]:
    """Which compiler made the machine code, as far as that can be read."""
    made: dict[str, list[str]] = {}
    for one in library.gpus:
        if one.target.startswith("sm_"):
            made.setdefault(one.compiler or "an unknown compiler", []).append(one.target)
    yield from (f"{' '.join(targets)} by {compiler}" for compiler, targets in made.items())


def _torch(torch: TorchUse | None) -> str:
    if torch is None:
        return "not needed"
    abi = "" if torch.cxx11 is None else f", cxx11 ABI {int(torch.cxx11)}"
    said = f"{torch.kind}, {output.count(torch.names, 'name')}{abi}: "
    if torch.releases:
        return f"{said}{' '.join(torch.releases)} have them all"
    nearest, lacking = min(torch.missing, key=lambda item: len(item[1]))
    return f"{said}no known torch has them all; {nearest} lacks {', '.join(lacking[:_SHOWN])}"


def _checked(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """The argparse type for a text with a parser, whose error it prints."""

    def read(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return read
