"""The one decision: the files and builds that give this host a kernel family. Pure: frozen values in, a value out.

The loader, the doctor, the release audit and the planner all call :func:`decide`. Nothing here looks at the outside
world; callers report damaged files through ``bad``. The rules, in this order: what no file and no build can change;
the library; what binds it to torch; for each GPU its device code; and for each of these pieces prebuilt files first,
then what can be built. A rejection has the reason alone; :func:`precast._abi.fixes.of` has the command that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from precast._abi.decision import (
    FROM_SOURCE,
    OWN_FUNCTIONS,
    Binding,
    BuildAdapter,
    BuildHost,
    BuildImage,
    BuildJit,
    Decision,
    OwnFunctions,
    Refuse,
    UsePrebuilt,
    asks_for_builders,
)
from precast._abi.settings import JitMode, Settings
from precast.core import choose, torch_abi
from precast.core.capability import MINIMUM_CAPABILITY, ComputeCapability, GpuTarget, TargetKind, min_driver
from precast.core.choose import BINDING, LIBRARY, Asked
from precast.core.host import Gpu, Host, TorchInfo, named_level
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind
from precast.core.reasons import (
    EVERYTHING,
    JIT_CANDIDATE,
    NO_TORCH,
    PREBUILT_CANDIDATE,
    Need,
    Pick,
    Reason,
    Rejection,
)
from precast.core.torch_abi import CLASSIC_FLOOR, STABLE_FLOOR, AbiKind, Exact
from precast.core.value import value
from precast.core.version import CudaVersion

_NOTHING_BAD: Mapping[str, Rejection] = {}


@value(frozen=True)
class Case:
    """What the choice of each piece depends on. Device code runs without torch; library and binding need one."""

    host: Host
    info: BuildInfo | None
    settings: Settings
    need: Need
    bad: Mapping[str, Rejection]

    @property
    def torch(self) -> TorchInfo:
        """The torch of the host, which the caller has looked for."""
        if self.host.torch is None:
            raise AssertionError(f"a library of {self.need.family} was to be chosen without torch")
        return self.host.torch


def decide(
    host: Host,
    build_info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, Rejection] = _NOTHING_BAD,
) -> Decision:
    """Decide which files to load and which pieces to build, or why neither is possible.

    ``bad`` has what is against single prebuilt files and images, by their names. A GPU
    without any device code is listed in ``refused`` as long as another GPU has some. If the builders have not been
    probed and a build could still make a difference, the reason ``builders-unknown`` asks for the probe (see
    :func:`precast._abi.decision.needs_builders`).
    """
    hopeless = tuple(_hopeless(host, settings, need))
    if hopeless or host.torch is None:
        return Refuse(hopeless)
    case = Case(host, build_info, settings, need, bad)
    library = choose_library(case)
    bound = isinstance(library.chosen, HostFile) and library.chosen.abi.kind is not AbiKind.TABLE
    binding: Pick[Binding] = Pick(None, ()) if bound else choose_binding(case)
    picks = [(gpu.index, choose_image(case, gpu)) for gpu in (host.gpus if need.device == "cuda" else ())]
    images = tuple((index, pick.chosen) for index, pick in picks if pick.chosen is not None)
    refused = tuple((index, pick.rejections) for index, pick in picks if pick.chosen is None)
    unserved = tuple(why for _, rejections in refused for why in rejections)
    if library.chosen is None or (binding.chosen is None and not bound):
        return Refuse(_only_what_matters(library, binding, unserved))
    if need.device == "cuda" and not images:
        return Refuse(unserved)
    served: tuple[Pick[object], ...] = (library, binding, *(pick for _, pick in picks if pick.chosen is not None))
    why = (refused, tuple(r for pick in served for r in pick.rejections), _notes(served, settings))
    files = tuple((index, image) for index, image in images if isinstance(image, DeviceFile))
    chosen = (library.chosen, binding.chosen)
    if isinstance(chosen[0], HostFile) and not isinstance(chosen[1], BuildAdapter) and len(files) == len(images):
        return UsePrebuilt(chosen[0], files, *why, chosen[1])
    return BuildJit(chosen[0], images, *why, chosen[1])


def _only_what_matters(
    library: Pick[HostFile | BuildHost], binding: Pick[Binding], unserved: tuple[Rejection, ...]
) -> tuple[Rejection, ...]:
    """What is missing, each thing once: a piece that is available needs no fix, and two may lack the same compiler.

    If one of the two is missing, no build helps, so builders are not searched.
    """
    missing = [pick.rejections for pick in (library, binding) if pick.chosen is None]
    hopeless = [rejections for rejections in missing if not any(map(asks_for_builders, rejections))]
    found: dict[tuple[str, str, str], Rejection] = {}
    for why in (*(why for rejections in hopeless or missing for why in rejections), *unserved):
        if hopeless and asks_for_builders(why):
            continue
        piece = "" if why.piece in (LIBRARY, BINDING) else why.piece
        found.setdefault((f"{piece} {why.candidate}", why.reason, why.found), why)
    return tuple(found.values())


def _notes(served: tuple[Pick[object], ...], settings: Settings) -> tuple[str, ...]:
    notes = tuple(note for pick in served for note in pick.notes)
    if settings.debug and settings.jit is not JitMode.JIT:
        return (*notes, "PRECAST_DEBUG changes what is built, not what is prebuilt; PRECAST_JIT=jit builds everything")
    return notes


# ---- what no file and no build can change ----


def _hopeless(host: Host, settings: Settings, need: Need) -> Iterator[Rejection]:
    if host.system != "Linux":
        yield Rejection(Reason.SYSTEM, "Linux", host.system, EVERYTHING, "host")
        return
    if settings.jit is JitMode.NONE:
        wanted = "PRECAST_JIT to be auto, aot or jit"
        yield Rejection(Reason.JIT_OFF, wanted, "PRECAST_JIT=none", EVERYTHING, "host")
    torch = host.torch
    if torch is None:
        found = f"a torch that fails to import: {host.torch_error}" if host.torch_error else NO_TORCH
        yield Rejection(Reason.TORCH_MISSING, "an importable torch 2.4.1 or newer", found, EVERYTHING, "host")
        return
    if need.device == "cuda":
        why = tuple(_hopeless_cuda(host, torch, settings))
        yield from (one.at("cuda", EVERYTHING) for one in why)
        if why:
            return
    elif need.device == "xpu":
        wanted = "an NVIDIA GPU, or the CPU" if torch.xpu else "an XPU build of torch"
        found = f"torch {torch.version}, {'XPU ' + torch.xpu if torch.xpu else 'not a build for XPU'}"
        yield Rejection(Reason.XPU, wanted, found, EVERYTHING, "xpu")
        return
    if settings.cpu_level is not None and host.cpu_levels is not None:
        try:
            named_level(host.cpu_levels, settings.cpu_level)
        except ValueError as error:
            wanted = "a level of this machine, or none to be given the best"
            yield Rejection(Reason.CPU_LEVEL, wanted, str(error), EVERYTHING, "host")


def _hopeless_cuda(host: Host, torch: TorchInfo, settings: Settings) -> Iterator[Rejection]:
    """Checks ROCm first, because ROCm builds of torch also call their device type CUDA."""
    if torch.hip is not None:
        yield Rejection(Reason.HIP, "a CUDA build of torch", f"torch {torch.version}, a ROCm build (HIP {torch.hip})")
        return
    if host.driver is None:  # a different torch would not help
        yield Rejection(Reason.DRIVER, "an NVIDIA driver (libcuda.so.1)", "none")
        return
    if torch.cuda is None:
        yield Rejection(Reason.TORCH_CPU, "a CUDA build of torch", f"torch {torch.version}, a CPU build")
    if not host.gpus:
        hidden = settings.visible_devices is not None
        found = f"none, with CUDA_VISIBLE_DEVICES={settings.visible_devices!r}" if hidden else "none"
        yield Rejection(Reason.NO_GPU, "a visible NVIDIA GPU", found)


# ---- the library, and what binds it to torch ----


def choose_library(case: Case) -> Pick[HostFile | BuildHost]:
    """Prefers a library for exactly this torch to one for many, and any to a build."""
    pick = _best_host_file(case, HostKind.LIBRARY)
    if pick.chosen is not None:
        unread = f"the level of libstdc++ could not be read; {pick.chosen.path} needs GLIBCXX_{pick.chosen.glibcxx}"
        return Pick(pick.chosen, pick.rejections, (unread,) if case.host.glibcxx is None else ())
    refusals = tuple(why.at(LIBRARY, JIT_CANDIDATE) for why in _no_compile(case))
    return Pick(None if refusals else BuildHost(), (*pick.rejections, *refusals))


def choose_binding(case: Case) -> Pick[Binding]:
    """Torch's own functions if it has them all, else a prebuilt adapter to it, else the build of one.

    Whether they are all there shows when the library is opened; ``bad`` then says what is wrong with them.
    """
    rejections: tuple[Rejection, ...] = ()
    if case.torch.version.release >= STABLE_FLOOR:
        if OWN_FUNCTIONS not in case.bad:
            return Pick(OwnFunctions(prove=case.torch.version.pre is not None), ())
        wanted = f"the functions of torch {STABLE_FLOOR}"
        found = case.bad[OWN_FUNCTIONS].found
        rejections = (Rejection(Reason.TORCH_ABI, wanted, found, OWN_FUNCTIONS, BINDING),)
    prebuilt = _best_host_file(case, HostKind.ADAPTER)
    if prebuilt.chosen is not None:
        return Pick(prebuilt.chosen, prebuilt.rejections)
    refusals = tuple(why.at(BINDING, JIT_CANDIDATE) for why in _no_adapter(case))
    torch = case.torch
    built = None if refusals else BuildAdapter(Exact(torch.version.release, torch.cxx11, torch.version.git))
    return Pick(built, (*rejections, *prebuilt.rejections, *refusals))


def _best_host_file(case: Case, kind: HostKind) -> Pick[HostFile]:
    """The best prebuilt file of a kind that fits, and the rejections of the others."""
    piece = LIBRARY if kind is HostKind.LIBRARY else BINDING
    unused = _nothing_prebuilt(case)
    if unused is not None or case.info is None:
        return Pick(None, (unused.at(piece, PREBUILT_CANDIDATE),) if unused is not None else ())
    asked = Asked(case.host, case.info, case.need.family, case.bad, case.settings.debug)
    return choose.library(asked) if kind is HostKind.LIBRARY else choose.best(asked, kind, piece)


def _nothing_prebuilt(case: Case) -> Rejection | None:
    """Why none of the prebuilt files is used; None if each must be judged."""
    info, stale = case.info, case.host.stale
    if case.settings.jit is JitMode.JIT:
        return Rejection(Reason.SKIPPED, "PRECAST_JIT to be auto or aot", "PRECAST_JIT=jit")
    if info is None or info.mode is BuildMode.PURE:
        return Rejection(Reason.NO_PREBUILT, "prebuilt files", FROM_SOURCE)
    if stale is not None:
        return stale
    return None


def _no_compile(case: Case, adapter_to: TorchInfo | None = None) -> Iterator[Rejection]:
    """Every reason why C++ cannot be compiled here; an adapter asks for more than a library.

    Under ``aot`` the builders are not probed until an error needs a fix. From then on a missing builder counts: the fix
    may be to allow a build, which would then fail.
    """
    builders, only_aot = case.host.builders, case.settings.jit is JitMode.AOT
    if only_aot:
        yield Rejection(Reason.AOT_ONLY, "PRECAST_JIT to be auto or jit", "PRECAST_JIT=aot")
    if builders is None:
        if not only_aot:
            yield Rejection(Reason.BUILDERS_UNKNOWN, "a C++ compiler and ninja", "not searched yet")
        return
    compiler = builders.compiler
    if compiler is None:
        yield Rejection(Reason.NO_COMPILER, "a C++ compiler, g++ or clang++", builders.search("compiler"))
    elif adapter_to is not None and compiler.kind != "g++":
        # An adapter runs its loops on the threads of torch's OpenMP, and only g++ links that one.
        found = f"{compiler.kind} {compiler.version} ({compiler.path})"
        yield Rejection(Reason.NO_COMPILER, f"g++, for torch {adapter_to.version}", found)
    if builders.ninja is None:
        yield Rejection(Reason.NO_NINJA, "ninja", builders.search("ninja"))


def _no_adapter(case: Case) -> Iterator[Rejection]:
    """Every reason why no adapter to this torch, bound to its commit, can be built."""
    torch, impossible = case.torch, None
    if torch.version.release < CLASSIC_FLOOR:
        wanted = f"torch {CLASSIC_FLOOR} or newer to build an adapter to"
        impossible = Rejection(Reason.CLASSIC_JIT, wanted, f"torch {torch.version}")
    elif not torch_abi.is_git_version(torch.version.git):
        wanted = f"a torch {STABLE_FLOOR} or newer with all of its functions, or the commit of this one"
        found = f"torch {torch.version}, whose git version is {torch.version.git or 'not known'}"
        impossible = Rejection(Reason.TORCH_ABI, wanted, found)
    if impossible is None:
        yield from _no_compile(case, torch)
        return
    yield from (why for why in _no_compile(case, torch) if why.reason is Reason.AOT_ONLY)
    yield impossible


# ---- the device code of one GPU: exact SASS, then same-major SASS, then PTX, then an NVRTC build ----


def choose_image(case: Case, gpu: Gpu) -> Pick[DeviceFile | BuildImage]:
    """The best device code for one GPU. The caller has checked that there is a driver."""
    piece = f"cuda:{gpu.index}"
    if gpu.capability < MINIMUM_CAPABILITY:
        why = Rejection(Reason.ARCH, f"compute capability {MINIMUM_CAPABILITY} or newer", _gpu(gpu))
        return Pick(None, (why.at(piece, PREBUILT_CANDIDATE),))
    rejections: list[Rejection] = []
    best: DeviceFile | None = None
    unused = _nothing_prebuilt(case)
    files = [file for file in case.info.device if file.family == case.need.family] if case.info is not None else []
    if unused is None and not files:
        unused = Rejection(Reason.FAMILY, f"device code of {case.need.family}", "none in this wheel")
    if unused is not None:
        files = []
        rejections.append(unused.at(piece, PREBUILT_CANDIDATE))
    for file in files:
        unmet = next(_unmet_by_image(file, gpu, case), None)
        if unmet is not None:
            rejections.append(unmet.at(piece, file.name))
        elif best is None or _image_rank(file.target, gpu.capability) > _image_rank(best.target, gpu.capability):
            best = file
    if best is not None:
        return Pick(best, tuple(rejections), _ptx_note(best.target, best.name, piece))
    target, refusals = _buildable(case, gpu)
    rejections += [why.at(piece, JIT_CANDIDATE) for why in refusals]
    if target is None:
        return Pick(None, tuple(rejections))
    return Pick(BuildImage(target), tuple(rejections), _ptx_note(target, f"what is built for {target}", piece))


def _unmet_by_image(file: DeviceFile, gpu: Gpu, case: Case) -> Iterator[Rejection]:
    """The requirements of device code that this GPU and its driver do not meet."""
    host = case.host
    if file.name in case.bad:
        yield case.bad[file.name]
    if not file.target.runs_on(gpu.capability):
        from precast._abi import served  # a GPU that a file is not for is no part of a call that is served

        about = "" if case.info is None else served.served_range(gpu.capability, case.info.label)
        yield Rejection(Reason.ARCH, file.target.serves, _gpu(gpu) + about)
    if host.driver is None or host.driver < file.min_driver:
        yield Rejection(Reason.DRIVER, _driver(file.min_driver), f"a driver for CUDA {host.driver}")
    if host.lzma_error is not None:
        wanted = "a Python that was compiled with liblzma-dev, to unpack it"
        yield Rejection(Reason.NO_LZMA, wanted, f"Python {host.python} without: {host.lzma_error}")


def _image_rank(target: GpuTarget, gpu: ComputeCapability) -> tuple[bool, bool, ComputeCapability, int]:
    """Greater is better: SASS before PTX, exact before same-major, newer before older, specific before general."""
    sass = target.kind is TargetKind.SASS
    return sass, sass and target.capability == gpu, target.capability, ("", "f", "a").index(target.suffix)


def _buildable(case: Case, gpu: Gpu) -> tuple[GpuTarget | None, list[Rejection]]:
    """The target for NVRTC, with the better ones that were rejected; or None and every reason.

    As for the host library, missing builders count under ``aot`` too, once they have been probed.
    """
    host, refusals = case.host, list[Rejection]()
    if case.settings.jit is JitMode.AOT:
        refusals.append(Rejection(Reason.AOT_ONLY, "PRECAST_JIT to be auto or jit", "PRECAST_JIT=aot"))
    if host.builders is None:
        return None, refusals or [Rejection(Reason.BUILDERS_UNKNOWN, "NVRTC", "not searched yet")]
    nvrtc = host.builders.nvrtc
    if nvrtc is None:
        return None, [*refusals, Rejection(Reason.NO_NVRTC, "NVRTC", host.builders.search("nvrtc"))]
    targets = nvrtc.targets_for(gpu.capability)
    if not targets:
        oldest = f" (oldest {min(nvrtc.targets)})" if nvrtc.targets else ""
        found = f"NVRTC {nvrtc.version}{oldest}; {_gpu(gpu)}"
        return None, [*refusals, Rejection(Reason.NVRTC_ARCH, f"an NVRTC that compiles for {gpu.capability}", found)]
    passed_over: list[Rejection] = []
    for target in targets:
        needed = min_driver(target, CudaVersion.parse(nvrtc.version))
        if host.driver is not None and host.driver >= needed:
            return (None, refusals) if refusals else (target, passed_over)
        wanted = f"{_driver(needed)} for {target} by NVRTC {nvrtc.version}"
        passed_over.append(Rejection(Reason.DRIVER, wanted, f"a driver for CUDA {host.driver}"))
    return None, [*refusals, *passed_over]


def _ptx_note(target: GpuTarget, what: str, piece: str) -> tuple[str, ...]:
    if target.kind is TargetKind.SASS:
        return ()
    return (f"{piece} runs {what} through the driver's compiler: about 0.1 s once, then the driver's own cache",)


def _gpu(gpu: Gpu) -> str:
    return f"compute capability {gpu.capability} ({gpu.name})"


def _driver(needed: CudaVersion) -> str:
    return f"a driver for CUDA {needed} or newer"
