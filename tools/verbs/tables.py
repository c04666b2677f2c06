"""Write what repeats matrix.toml: tables of README and the guides, its picture, what the package knows of toolkits.

The tables of docs/reference/parity.md are written too, from the TOML file beside it. With --check nothing is written:
exit status 1 when a file differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from precast._builder import matrix
from precast._builder.matrix import LabelSpec, Matrix, TorchRelease
from precast.core.capability import MINIMUM_CAPABILITY, ComputeCapability, GpuTarget, TargetKind
from precast.core.version import CudaVersion
from precast.errors import KernelError
from tools.shared import evidence, gpu_checks, matrix_picture, parity, plan_summary, selector, served, speed
from tools.shared.cells import DeviceCell, HostCell, WheelCell, expand

ROOT = Path(__file__).resolve().parents[2]
PARITY = "<!-- parity -->\n"


def main(arguments: list[str]) -> int:
    """Write or compare each file."""
    parser = argparse.ArgumentParser(prog="python -m tools tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args(arguments)
    try:
        differing = [name for name, text in written(ROOT).items() if text != (ROOT / name).read_text(encoding="utf-8")]
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    if options.check:
        for name in differing:
            print(f"{name}: differs from what it repeats; python -m tools tables writes it", file=sys.stderr)
        return 1 if differing else 0
    for name, text in written(ROOT).items():
        (ROOT / name).write_text(text, encoding="utf-8")
    print("\n".join(f"{name}: written" for name in differing) or "nothing differs")
    return 0


def written(root: Path) -> Mapping[str, str]:
    """The wanted text of each file below ``root`` that repeats its matrix.toml."""
    known = matrix.load(root / "matrix.toml")
    return {name: write(known, (root / name).read_text(encoding="utf-8")) for name, write in FILES.items()}


def readme(known: Matrix, text: str) -> str:
    """The table of labels, the rules for choosing one, and the sentences on sizes, on speed and on what has run."""
    rows = [(f"`{spec.name}`", _serves(known, spec), _gpus(spec)) for spec in known.labels if spec.label.text]
    text = _with_rows(text, "| Label | For | Machine code for compute capability |", rows)
    text = _with_words(text, r"(?<=<!-- speed -->\n).*", speed.sentence(speed.read(ROOT / speed.FILE)))
    text = _with_words(text, r"(?<=<!-- state -->\n).*", state(known))
    return ruled(known, text)


def state(known: Matrix) -> str:
    """What has run so far: the GPUs, and the counts of ``python -m tools plan --summary``."""
    found = evidence.load(evidence.FOLDER, known)
    counted = plan_summary.split(expand(known, known.event("release")), known, found)
    said = [run.hardware for one in found for run in one.runs if run.device == "cuda"]
    said += [row[0] for row in gpu_checks.rows()]
    gpus = [name for names in selector.GPUS.values() for name in names if any(name in text for text in said)]
    return (
        "**Status**: precast is alpha software, on no package index. Its GPU code has run on "
        f"{' and '.join(gpus)} only. Of {len(counted.cells)} combinations of torch, CUDA, Python and architecture, "
        f"{len(counted.executed)} were tested completely, and {len(counted.without_gpu)} more on the CPU alone "
        "([evidence](docs/evidence/README.md))."
    )


def sizes(known: Matrix) -> str:
    """How large the wheels of each label are at most, by their budgets."""
    alike: dict[int, list[str]] = {}
    for spec in known.labels:
        if spec.label.text:
            alike.setdefault(known.max_bytes_of(spec.label), []).append(f"`{spec.name}`")
    parts = [
        f"{most / 1e6:g} MB ({names[0]}{f' to {names[-1]}' if names[1:] else ''})"
        for most, names in sorted(alike.items())
    ]
    return f"A wheel has at most {', '.join(parts[:-1])} or {parts[-1]}."


def install(known: Matrix, text: str) -> str:
    """The table of labels with the driver that each needs."""
    rows = []
    for spec in known.labels:
        if spec.label.cuda is not None:
            cuda = spec.label.cuda
            rows.append((f"`{spec.name}`", f"CUDA {cuda.major}.0 or newer", f"CUDA {cuda} or newer", _gpus(spec)))
        elif spec.label.text:
            rows.append((f"`{spec.name}`", "none", "none", "none"))
    header = "| Label | Driver for machine code | Driver for PTX | Machine code for compute capability |"
    return ruled(known, _with_rows(text, header, rows))


def start(known: Matrix, text: str) -> str:
    """The table of GPUs and labels: which wheel has machine code for which GPU, of the same major too."""
    alike: dict[tuple[GpuTarget, ...], list[LabelSpec]] = {}  # labels in a row with the same code are one column
    for spec in known.labels:
        if spec.label.cuda is not None:
            alike.setdefault(tuple(filter(_is_sass, spec.targets)), []).append(spec)
    columns = {targets: " ".join(f"`{spec.name}`" for spec in specs) for targets, specs in alike.items()}
    names = {gpu: f"{names[0]} ({gpu})" for gpu, names in selector.GPUS.items() if gpu not in selector.ARM_ONLY}
    head = ["GPU", *columns.values()]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for text_of, title in names.items():
        gpu = ComputeCapability.parse(text_of)
        cells = ["yes" if any(target.runs_on(gpu) for target in targets) else "" for targets in columns]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    found, count = re.subn(r"(?<=<!-- gpu_matrix -->\n)(?:\|.*\n)+", table, text)
    if count != 1:
        raise KernelError(f"needed one table after <!-- gpu_matrix -->; found {count}")
    return found


def rule(known: Matrix) -> str:
    """Which label to take: of the newest major that a driver has, the newest with code for the GPU."""
    newest = {spec.label.cuda.major: spec for spec in sorted(known.labels, key=_cuda) if spec.label.cuda is not None}
    parts: list[str] = []
    newer: set[ComputeCapability] = set()
    for major, spec in sorted(newest.items(), reverse=True):
        gpus = {target.capability for target in spec.targets if _is_sass(target)}
        alone = ", ".join(map(str, sorted(gpus - newer))) if newer else ""
        parts.append(f"`{spec.name}` for CUDA {major} drivers" + (f" or compute capability {alone}" if alone else ""))
        newer |= gpus
    return (
        "**Which label?** The newest label whose CUDA major your driver supports and that has code for your GPU: "
        f"{', '.join(parts)}, `cpu` without a GPU. The label need not match the CUDA of torch."
    )


# What one shop may have: GPUs of four generations and an ARM machine.
FLEET = ("V100", "A100", "L4", "H100", "GB10 (DGX Spark)")


def fleet(known: Matrix) -> str:
    """The label for a mixed fleet whose drivers are of every major: what the selector answers for it."""
    data = selector.planned(known, "0", selector.HERE)
    gpus = {name: gpu for gpu in data["gpus"] for name in gpu["names"]}
    drivers = {text.partition(".")[0]: text for text in data["drivers"]}  # the newest of each major
    label, code = selector.common(
        data["codes"],
        [
            (gpu["machines"][0], text, gpu["capability"])
            for gpu in (gpus[name] for name in FLEET)
            for text in drivers.values()
        ],
    )
    if code not in (selector.SASS, selector.SAME_MAJOR):
        raise KernelError(f"no label has machine code for all of {', '.join(FLEET)}", found=f"{label}: {code}")
    *names, last = (name.partition(" (")[0] for name in FLEET)
    return (
        f"**Different machines?** `{label}` has machine code for {', '.join(names)} and {last}, under drivers "
        f"for CUDA {' and '.join(drivers)}; x86_64 and aarch64 need separate wheels."
    )


def ruled(known: Matrix, text: str) -> str:
    """A page with the rule after its mark and, where it has marks for them, the answer for a fleet and the sizes."""
    for mark, words in (("<!-- fleet -->", fleet), ("<!-- sizes -->", sizes)):
        if mark in text:
            text = _with_words(text, rf"(?<={mark}\n).*", words(known))
    return _with_words(text, r"(?<=<!-- label rule -->\n).*", rule(known))


def _cuda(spec: LabelSpec) -> int:
    return 0 if spec.label.cuda is None else spec.label.cuda.driver_number


def wheels(known: Matrix, text: str) -> str:
    """The number of files in a release, and of hosts that they serve."""
    release = expand(known, known.event("release"))
    one_each: dict[str, tuple[str, Sequence[DeviceCell | HostCell | WheelCell]]] = {
        "device code": ("CUDA label", release.device),
        "host library": ("architecture", [cell for cell in release.host if not cell.headers]),
        "adapter": ("torch 2.4 to 2.9, C++ ABI and architecture", [cell for cell in release.host if cell.headers]),
        "wheel": ("label and architecture", release.wheel),
    }
    rows = [
        (title, each, str(len(cells)), str(sum(not cell.not_built for cell in cells)))
        for title, (each, cells) in one_each.items()
    ]
    text = _with_rows(text, "| | One for each | A release has | Built today |", rows)
    ways = served.torch_cells(known)
    built = served.built(release, known, ways)
    first, last = known.releases[0].release, known.releases[-1].release
    text = _with_words(text, r"every torch from \S+ to \S+\.", f"every torch from {first} to {last}.")
    text = _with_words(text, r"There are \d+ ways to have torch", f"There are {len(ways)} ways to have torch")
    serve = f"The {len(release.wheel)} wheels serve {len(built)} of them"
    return _with_words(text, r"The \d+ wheels serve \d+ of them", serve)


def parities(_known: Matrix, text: str) -> str:
    """The tables of what stands in for the older packages, from the file beside the page."""
    head, mark, _ = text.partition(PARITY)
    if not mark:
        raise KernelError(f"needed one place with {PARITY!r}; found none")
    return f"{head}{mark}\n{parity.page(parity.read(ROOT / parity.FILE))}"


def drawn(known: Matrix, _text: str) -> str:
    """The picture of what was built and executed."""
    return matrix_picture.draw(known)


def toolkits(known: Matrix, _text: str) -> str:
    """The Python module with the facts that the package needs when it has no matrix.toml."""
    specs = sorted((cuda, spec) for spec in known.labels if (cuda := spec.label.cuda) is not None)
    first: dict[ComputeCapability, CudaVersion] = {}
    floor: dict[int, ComputeCapability] = {}
    for cuda, spec in specs:
        floor[cuda.major] = min(floor.get(cuda.major, spec.reports[0]), *spec.reports)
        for gpu in spec.reports:
            first.setdefault(gpu, cuda)
    oldest = specs[0][0]
    return "\n".join(
        (
            '"""What the package knows of CUDA toolkits. ``python -m tools tables`` writes it from matrix.toml."""',
            "",
            "# The CUDA labels, oldest toolkit first.",
            f"LABELS = ({', '.join(_quoted(spec.name) for _, spec in specs)})",
            "",
            "# CUDA major -> the oldest GPU that its toolkits compile for, where that is above our own minimum.",
            f"SASS_FLOOR = {_mapping({str(k): _quoted(str(v)) for k, v in floor.items() if v > MINIMUM_CAPABILITY})}",
            "",
            f"# GPU -> the first toolkit that compiles for it, for GPUs newer than CUDA {oldest}.",
            "FIRST_TOOLKIT = {",
            *(f'    "{gpu}": "{cuda}",' for gpu, cuda in sorted(first.items()) if cuda != oldest),
            "}",
            "",
            "# Every GPU that a toolkit compiles for, from our own minimum on.",
            f"GPUS = ({', '.join(_quoted(str(gpu)) for gpu in sorted(first) if gpu >= MINIMUM_CAPABILITY)})",
            "",
            "# CPU architecture -> torch's CUDA builds that are also labels, those of the newest torch first.",
            "TORCH_BUILDS = {",
            *(f'    "{machine}": ({_torch_builds(known, machine)}),' for machine in known.machines),
            "}",
            "",
            "# CUDA label -> the version of its compiler, and the GPU targets of its wheels.",
            "TARGETS = {",
            *(f'    "{spec.name}": ("{spec.nvrtc}", "{" ".join(map(str, spec.targets))}"),' for _, spec in specs),
            "}",
            "",
            "# torch -> its newest patch release, the C++ standard of its headers, the builds that PyPI has.",
            "RELEASES = {",
            *(_torch_release(known, release) for release in known.releases),
            "}",
            "",
            "# torch's own index has a folder for each build.",
            f'INDEX = "{known.torch_index}"',
            "",
        )
    )


def _torch_release(known: Matrix, release: TorchRelease) -> str:
    pypi = _mapping({_quoted(machine): _quoted(release.pypi[machine]) for machine in known.machines})
    return f'    "{release.release}": ("{release.version}", {release.cxx_standard}, {pypi}),'


def _torch_builds(known: Matrix, machine: str) -> str:
    """The CUDA builds of torch; of those that one torch has, the oldest toolkit first: it asks least of a driver."""
    labels = [spec.name for spec in known.labels if spec.label.cuda is not None]
    builds = [
        label
        for release in reversed(known.releases)
        for label in labels
        if label in {build.name for build in release.builds.get(machine, ())}
    ]
    return ", ".join(map(_quoted, dict.fromkeys(builds)))


OP_TESTS = "x86_64-one-library-op-tests.json"


def failed(known: Matrix) -> str:
    """How many of the kept op tests failed, torch by torch."""
    kept = evidence.read(evidence.FOLDER / OP_TESTS, known)
    torches: dict[int, list[str]] = {}
    for run in kept.runs:
        counts = re.match(r"op and optimizer tests: \d+ passed, (\d+) failed", run.checks[0])
        if counts is None:
            raise KernelError(f"{OP_TESTS}: {run} does not say how many tests failed", found=run.checks[0])
        torches.setdefault(int(counts[1]), []).append(str(run.torch.release))
    parts = [
        f"{count or 'none'}{' each' * (count > 0 and len(names) > 1)} with {_joined(names)}"
        for count, names in sorted(torches.items(), reverse=True)
    ]
    listed = "; ".join(parts).replace(" with ", " failed with torch ", 1)
    return f"Of about 2,900 [op tests]({OP_TESTS}) of {kept.date}, {listed}."


def _joined(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def seen(known: Matrix, text: str) -> str:
    """The counts of failed tests, and the table of the checks on GPUs that are kept beside the page."""
    text = _with_words(text, r"(?<=<!-- failed -->\n).*", failed(known))
    return _with_rows(text, "| GPU | Commit | torch | Passed | Not passed | Minutes |", gpu_checks.rows())


FILES: Mapping[str, Callable[[Matrix, str], str]] = {
    "README.md": readme,
    "docs/guides/install.md": install,
    "docs/README.md": start,
    "docs/questions.md": ruled,
    "docs/concepts/wheels.md": wheels,
    "docs/images/matrix.svg": drawn,
    "docs/reference/parity.md": parities,
    "docs/evidence/README.md": seen,
    "pkg/precast/_abi/toolkits.py": toolkits,
}


def _serves(known: Matrix, spec: LabelSpec) -> str:
    """The drivers for a label, and how it differs from the first label with the same drivers."""
    cuda = spec.label.cuda
    if cuda is None:
        return "machines without a GPU"
    alike = [other for other in known.labels if other.label.cuda and other.label.cuda.major == cuda.major]
    more = ", newer compiler" if spec.targets == alike[0].targets else ", newer GPUs"
    return f"CUDA {cuda.major} drivers{'' if spec is alike[0] else more}"


def _gpus(spec: LabelSpec) -> str:
    return ", ".join(str(target.capability) for target in spec.targets if _is_sass(target)) or "none"


def _is_sass(target: GpuTarget) -> bool:
    return target.kind is TargetKind.SASS


def _with_rows(text: str, header: str, rows: Sequence[Sequence[str]]) -> str:
    """A page with new rows below one header."""
    found = re.findall(rf"^{re.escape(header)}\n\|[- |]+\|\n(?:\|.*\n)*", text, re.MULTILINE)
    if len(found) != 1:
        raise KernelError(f"needed one table below {header!r}; found {len(found)}")
    head = found[0].splitlines(keepends=True)[:2]
    return text.replace(found[0], "".join((*head, *(f"| {' | '.join(row)} |\n" for row in rows))))


def _with_words(text: str, pattern: str, words: str) -> str:
    """A page with new words in one place."""
    text, count = re.subn(pattern, words, text)
    if count != 1:
        raise KernelError(f"needed one place with {pattern!r}; found {count}")
    return text


def _quoted(text: str) -> str:
    return f'"{text}"'


def _mapping(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
