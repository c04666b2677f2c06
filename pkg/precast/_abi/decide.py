"""The one decision: the files and builds that give this host a kernel family. Pure: frozen values in, a value out.

The loader, the doctor, the release audit and the planner all call this function. Nothing here looks at the outside
world; callers report damaged files through ``bad``.
"""

from __future__ import annotations

from collections.abc import Mapping

from precast._abi import remedy
from precast._abi._host_piece import BINDING, LIBRARY, choose_binding, choose_host
from precast._abi.build_info import BuildInfo, DeviceFile, HostFile
from precast._abi.decision import (
    EVERYTHING,
    JIT_CANDIDATE,
    NO_TORCH,
    OWN_FUNCTIONS,
    PREBUILT_CANDIDATE,
    Binding,
    BuildAdapter,
    BuildHost,
    BuildImage,
    BuildJit,
    Choice,
    Decision,
    Need,
    OwnFunctions,
    Reason,
    Refuse,
    Refused,
    Rejection,
    Unopened,
    UsePrebuilt,
    all_rejections,
    needs_builders,
)
from precast._abi.host import Host, TorchInfo
from precast._abi.settings import JitMode, Settings
from precast._abi.torch_abi import AnyTorch

__all__ = [
    "EVERYTHING",
    "JIT_CANDIDATE",
    "OWN_FUNCTIONS",
    "PREBUILT_CANDIDATE",
    "BuildAdapter",
    "BuildHost",
    "BuildImage",
    "BuildJit",
    "Decision",
    "Need",
    "OwnFunctions",
    "Reason",
    "Refuse",
    "Refused",
    "Rejection",
    "UsePrebuilt",
    "all_rejections",
    "decide",
    "needs_builders",
]

_NOTHING_BAD: Mapping[str, str] = {}


def decide(
    host: Host,
    build_info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened] = _NOTHING_BAD,
) -> Decision:
    """Decide which files to load and which pieces to build, or why neither is possible.

    ``bad`` maps the name of a prebuilt file or image to its defect, or to the reason why it cannot be opened. A GPU
    without any device code is listed in ``refused`` as long as another GPU has some. If the builders have not been
    probed and a build could still make a difference, the reason ``builders-unknown`` asks for the probe (see
    :func:`needs_builders`).
    """
    hopeless = _refuse_outright(host, settings, need)
    if hopeless or host.torch is None:
        return Refuse(hopeless)
    library = choose_host(host, host.torch, build_info, settings, need, bad)
    binding: Choice[Binding] = Choice(None, ())
    bound = isinstance(library.chosen, HostFile) and not isinstance(library.chosen.abi, AnyTorch)
    if not bound:
        binding = choose_binding(host, host.torch, build_info, settings, need, bad)
    rejections, notes = [*library.rejections, *binding.rejections], list(library.notes)
    images: list[tuple[int, DeviceFile | BuildImage]] = []
    refused: list[tuple[int, tuple[Rejection, ...]]] = []
    for gpu in host.gpus if need.device == "cuda" else ():
        from precast._abi._device_piece import choose_image  # imported here to keep a first call on the CPU quick

        image = choose_image(gpu, host, build_info, settings, need, bad)
        if image.chosen is None:
            refused.append((gpu.index, image.rejections))
            continue
        images.append((gpu.index, image.chosen))
        rejections += image.rejections
        notes += image.notes
    unserved = [why for _, all_why in refused for why in all_why]
    if library.chosen is None or (binding.chosen is None and not bound):
        return Refuse(_only_what_matters(library, binding, unserved))
    if need.device == "cuda" and not images:
        return Refuse(tuple(unserved))
    chosen = (library.chosen, binding.chosen)
    return _assemble(*chosen, images, tuple(refused), tuple(rejections), _with_debug_note(notes, settings))


def _assemble(
    library: HostFile | BuildHost,
    binding: Binding,
    images: list[tuple[int, DeviceFile | BuildImage]],
    refused: Refused,
    rejections: tuple[Rejection, ...],
    notes: tuple[str, ...],
) -> UsePrebuilt | BuildJit:
    files = [(index, image) for index, image in images if isinstance(image, DeviceFile)]
    if isinstance(library, HostFile) and not isinstance(binding, BuildAdapter) and len(files) == len(images):
        return UsePrebuilt(library, tuple(files), refused, rejections, notes, binding)
    return BuildJit(library, tuple(images), refused, rejections, notes, binding)


def _only_what_matters(
    library: Choice[HostFile | BuildHost], binding: Choice[Binding], unserved: list[Rejection]
) -> tuple[Rejection, ...]:
    """What is missing, each thing once: a piece that is available needs no fix, and two may lack the same compiler.

    If one of the two cannot be had, no build helps, so nobody need look for builders.
    """
    missing = [choice.rejections for choice in (library, binding) if choice.chosen is None]
    hopeless = [rejections for rejections in missing if not any(map(_asks, rejections))]
    found: dict[tuple[str, Reason, str], Rejection] = {}
    for why in (*(why for rejections in hopeless or missing for why in rejections), *unserved):
        if hopeless and _asks(why):
            continue
        piece = "" if why.piece in (LIBRARY, BINDING) else why.piece
        found.setdefault((f"{piece} {why.candidate}", why.reason, why.found), why)
    return tuple(found.values())


def _asks(why: Rejection) -> bool:
    return why.reason is Reason.BUILDERS_UNKNOWN


def _refuse_outright(host: Host, settings: Settings, need: Need) -> tuple[Rejection, ...]:
    """The reasons to refuse that no file and no build can change."""
    if host.system != "Linux":
        return (Rejection("host", EVERYTHING, Reason.SYSTEM, "Linux", host.system),)
    why: list[Rejection] = []
    if settings.jit is JitMode.OFF:
        wanted = "PRECAST_JIT to be auto, aot or jit"
        why.append(Rejection("host", EVERYTHING, Reason.JIT_OFF, wanted, "PRECAST_JIT=off", remedy.ALLOW_JIT))
    if host.torch is None:
        found = f"a torch that fails to import: {host.torch_error}" if host.torch_error else NO_TORCH
        wanted = "an importable torch 2.4.1 or newer"
        why.append(Rejection("host", EVERYTHING, Reason.TORCH_MISSING, wanted, found, remedy.install_torch(host)))
    elif need.device == "cuda":
        why += _refuse_cuda(host, host.torch, settings)
    elif need.device == "xpu":
        found = f"torch {host.torch.version}, {'XPU ' + host.torch.xpu if host.torch.xpu else 'not a build for XPU'}"
        why.append(Rejection("xpu", EVERYTHING, Reason.XPU, "an NVIDIA GPU, or the CPU", found))
    return tuple(why)


def _refuse_cuda(host: Host, torch: TorchInfo, settings: Settings) -> list[Rejection]:
    """Checks ROCm first, because ROCm builds of torch also call their device type CUDA."""
    if torch.hip is not None:
        found = f"torch {torch.version}, a ROCm build (HIP {torch.hip})"
        return [Rejection("cuda", EVERYTHING, Reason.HIP, "a CUDA build of torch", found)]
    if host.driver is None:  # a different torch would not help
        found, wanted = "none", "an NVIDIA driver (libcuda.so.1)"
        return [Rejection("cuda", EVERYTHING, Reason.DRIVER, wanted, found, remedy.DRIVER)]
    why: list[Rejection] = []
    if torch.cuda is None:
        found = f"torch {torch.version}, a CPU build"
        fix = remedy.install_cuda_torch(host)
        why.append(Rejection("cuda", EVERYTHING, Reason.TORCH_CPU, "a CUDA build of torch", found, fix))
    if not host.gpus:
        hidden = settings.visible_devices is not None
        found = f"none, with CUDA_VISIBLE_DEVICES={settings.visible_devices!r}" if hidden else "none"
        fix = remedy.NO_SETTING_HIDES if hidden else ""
        why.append(Rejection("cuda", EVERYTHING, Reason.NO_GPU, "a visible NVIDIA GPU", found, fix))
    return why


def _with_debug_note(notes: list[str], settings: Settings) -> tuple[str, ...]:
    if settings.debug and settings.jit is not JitMode.JIT:
        notes = [*notes, "PRECAST_DEBUG changes what is built, not what is prebuilt; PRECAST_JIT=jit builds everything"]
    return tuple(notes)
