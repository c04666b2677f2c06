"""``precast warm``: build kernels before their first use, for this machine or, with ``--arch``, for other GPUs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from precast._abi import fixes, toolkits
from precast._abi.arch_list import parse_arch_list
from precast._abi.decision import BuildAdapter, BuildHost, BuildImage, Refuse
from precast._abi.settings import JitMode, Settings
from precast._builder.catalogue import Family
from precast._cli import names, output, status
from precast._load import jit, probe, report, verdict
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.host import Builders
from precast.errors import JitDisabled, KernelError, KernelUnavailable

if TYPE_CHECKING:
    from precast._cli.names import Verbs

_WHY = "asked for by precast warm"

_GPUS = tuple(map(ComputeCapability.parse, toolkits.GPUS))  # a newer NVRTC may know more


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("warm", help="build missing kernels before their first use; --arch needs no GPU")
    parser.add_argument(
        "kernels", nargs="*", type=names.kernel("warm"), metavar="KERNEL", help="only these kernels; default: all"
    )
    parser.add_argument(
        "--arch",
        type=_targets,
        metavar="LIST",
        help="build GPU code for these targets, such as sm_121 or '9.0;12.1+PTX'",
    )
    parser.add_argument(
        "--jobs", type=_count, metavar="N", help="run up to N compilers at the same time; overrides MAX_JOBS"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Build the kernels; return 1 if one of them cannot be built here."""
    settings = probe.read_settings()
    if settings.jit in (JitMode.AOT, JitMode.NONE):
        raise JitDisabled(
            "nothing can be built ahead of its use",
            found=f"PRECAST_JIT={settings.jit.value}",
            needed="PRECAST_JIT=auto or PRECAST_JIT=jit",
            fix="PRECAST_JIT=auto precast warm",
        )
    if options.jobs:
        settings = replace(settings, max_jobs=options.jobs)
    families = names.families(options.kernels)
    examination = report.Examination(settings)
    builders = None if options.arch is None else _require_nvrtc(examination, options.arch)
    failed = [family for family in families if not _warm_family(examination, family, visible=options.arch is None)]
    if builders is not None:
        _warm_targets(examination, families, options.arch, builders)
    output.say(f"{len(families) - len(failed)} of {len(families)} kernel families are ready")
    return status.NO if failed else status.GOOD


def _warm_family(examination: report.Examination, family: Family, *, visible: bool) -> bool:
    """Build what the loader would build for this machine: the host library, and code for the visible GPUs."""
    devices = [d for d in family.devices if d == "cpu" or (visible and examination.has_gpu)]
    ready = True
    for device in devices:
        choice = examination.choice(family, device)
        if isinstance(choice, KernelError):
            raise choice
        decision = choice.decision
        if choice.plain:
            output.say(f"{family.name}: {report.PLAIN}")
            continue
        if isinstance(decision, Refuse):
            output.say(verdict.refusal(choice))
            ready = False
            continue
        if isinstance(decision.host, BuildHost):
            source = jit.build_host(family.name, choice.builders, choice.settings, _WHY)
            output.say(f"{family.name}: host library: {source}")
        else:
            output.say(f"{family.name}: host library: prebuilt {decision.host.path}")
        if isinstance(decision.binding, BuildAdapter):
            source = jit.build_adapter(decision.binding, choice.builders, choice.settings, _WHY)
            output.say(f"{family.name}: adapter to torch: {source}")
        targets = [image.target for _, image in decision.images if isinstance(image, BuildImage)]
        if targets:
            _build_images(family, targets, choice.builders, choice.settings)
        ready = ready and not decision.refused
    return ready


def _require_nvrtc(examination: report.Examination, targets: tuple[GpuTarget, ...]) -> Builders:
    """Return the builders with an NVRTC that knows every target; raise before anything is built if there is none.

    A target that no GPU has is reported first, because no NVRTC would help.
    """
    builders = probe.probe_builders(examination.settings)
    found = builders.nvrtc
    known = {*_GPUS, *(found.targets if found is not None else ())}
    strange = [target for target in targets if target.capability not in known or target.capability < _GPUS[0]]
    if strange:
        raise KernelUnavailable(
            f"there is no GPU target {' '.join(map(str, strange))} to build for",
            found=f"--arch {' '.join(map(str, targets))}",
            needed=f"targets of GPUs that exist: {', '.join(map(str, _GPUS))}",
            fix=f"precast warm --arch {min(_GPUS, key=lambda gpu: _distance(gpu, strange[0]))}",
        )
    if found is None:
        raise KernelUnavailable(
            f"device code for {' '.join(map(str, targets))} cannot be built",
            found=[line for line in builders.looked_at if line.startswith("nvrtc")] or "no NVRTC",
            needed="NVRTC, the library of CUDA that compiles device code",
            fix=fixes.install_nvrtc(examination.host),
        )
    unknown = [target for target in targets if target.capability not in found.targets]
    if unknown:
        raise KernelUnavailable(
            f"device code for {' '.join(map(str, unknown))} cannot be built",
            found=f"NVRTC {found.version} ({found.path}), which knows {' '.join(map(str, found.targets))}",
            needed="an NVRTC that knows them; the GPU machine must use this same NVRTC version",
            fix=f"python -m precast warm --arch {found.targets[-1]}  # the newest target of this NVRTC",
        )
    return builders


def _distance(gpu: ComputeCapability, target: GpuTarget) -> int:
    return abs(gpu.number - target.capability.number)


def _warm_targets(
    examination: report.Examination, families: tuple[Family, ...], targets: tuple[GpuTarget, ...], builders: Builders
) -> None:
    """Build device code for the given targets. This needs only NVRTC, no torch and no GPU."""
    info, error = examination.manifest
    if error is not None:
        raise error
    shipped = {(file.family, file.target) for file in info.device} if info else set()
    for family in families:
        missing = [target for target in targets if (family.name, target) not in shipped]
        for target in sorted(set(targets) - set(missing), key=str):
            output.say(f"{family.name}: {target}: prebuilt")
        if missing and family.device is not None:
            _build_images(family, missing, builders, examination.settings)


def _build_images(family: Family, targets: list[GpuTarget], builders: Builders, settings: Settings) -> None:
    for target, source in jit.build_images(family.name, targets, builders, settings, _WHY).items():
        output.say(f"{family.name}: {target}: {source}")


def _targets(text: str) -> tuple[GpuTarget, ...]:
    try:
        targets = parse_arch_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not targets:
        raise argparse.ArgumentTypeError(f"{text!r} names no GPU; needed one such as sm_121 or '9.0;12.1+PTX'")
    return targets


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**6):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of jobs; needed 1 to 999999")
    return int(text)
