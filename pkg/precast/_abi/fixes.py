"""The command that fixes a rejection, chosen from the facts of the host; an empty string if no command would.

The decision gives reasons alone. Whoever tells a person looks the command up here, with :func:`of`.

A printed fix is a promise: it works as pasted, and the op works afterwards. So a command that needs a package index is
offered only if the index is known. A command that needs the sources is offered only if pip recorded where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from precast._abi import toolkits
from precast._abi.served import LABELS, label_for, label_serves
from precast._abi.settings import JitMode, Settings
from precast._version import __version__
from precast.core.capability import ComputeCapability
from precast.core.explain import MOST_ACTIONS
from precast.core.host import Builders, Host, Installer
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.reasons import EVERYTHING, JIT_CANDIDATE, Reason, Rejection
from precast.core.torch_abi import CLASSIC_FLOOR, STABLE_FLOOR
from precast.core.value import value
from precast.core.version import Label
from precast.errors import block

ALLOW_JIT = "export PRECAST_JIT=auto"
DRIVER = "install the NVIDIA driver (https://www.nvidia.com/drivers), or in a container: docker run --gpus all"
_NEWLY = "--force-reinstall --no-deps"
_UNKNOWN = Installer()

Fix = Callable[[Rejection], str]  # the command that removes a reason, or nothing; :func:`of`


@value(frozen=True)
class Facts:
    """What a fix depends on: what the decision had, with a host whose builders and installer were probed for it."""

    host: Host
    info: BuildInfo | None
    settings: Settings
    bad: Mapping[str, Rejection]


def of(why: Rejection, facts: Facts) -> str:
    """The command that removes the reason of a rejection."""
    return _FIXES[Reason(why.reason)](why, facts)


def _torch(why: Rejection, facts: Facts) -> str:
    """A newer torch helps what is for another one, but not what is for an older one than this."""
    torch = facts.host.torch
    newer_helps = torch is None or torch.version.release < STABLE_FLOOR or why.candidate == JIT_CANDIDATE
    return install_torch(facts.host) if newer_helps else ""


def _prebuilt(why: Rejection, facts: Facts) -> str:
    pure = facts.info is None or facts.info.mode is BuildMode.PURE  # another wheel lacks what its author left out
    return prebuilt_wheel(facts.host, facts.info, facts.settings) if pure else ""


def _label(why: Rejection, facts: Facts) -> str:
    """The label for the GPU that a rejection of prebuilt device code is about."""
    if why.reason is Reason.DRIVER and why.candidate == EVERYTHING:
        return DRIVER
    gpu = next((gpu for gpu in facts.host.gpus if why.piece == f"cuda:{gpu.index}"), None)
    if gpu is None or why.candidate == JIT_CANDIDATE:
        return ""
    return other_label(facts.host, gpu.capability, facts.info, facts.settings)


def _again(why: Rejection, facts: Facts) -> str:
    return "" if facts.info is None else reinstall(facts.host, facts.info, facts.settings)


def _upgrade(why: Rejection, facts: Facts) -> str:
    return up_to_date(facts.host, facts.info, facts.settings)


def _opened(why: Rejection, facts: Facts) -> str:
    return why.fix


def _compiler(why: Rejection, facts: Facts) -> str:
    return install_compiler(facts.host) if facts.settings.cxx is None else "unset CXX"


def _gpu(why: Rejection, facts: Facts) -> str:
    return "" if facts.settings.visible_devices is None else "unset CUDA_VISIBLE_DEVICES"


def _nothing(why: Rejection, facts: Facts) -> str:
    """No command changes this machine, or what a file was built for."""
    return ""


_FIXES: Mapping[Reason, Callable[[Rejection, Facts], str]] = {
    Reason.TORCH_MISSING: _torch,
    Reason.TORCH_ABI: _torch,
    Reason.CLASSIC_JIT: _torch,
    Reason.TORCH_CPU: lambda _, facts: install_cuda_torch(facts.host),
    Reason.NO_GPU: _gpu,
    Reason.JIT_OFF: lambda *_: ALLOW_JIT,
    Reason.AOT_ONLY: lambda *_: ALLOW_JIT,
    Reason.CPU_LEVEL: lambda *_: "unset PRECAST_CPU_LEVEL",
    Reason.NO_PREBUILT: _prebuilt,
    Reason.STALE: _upgrade,
    Reason.DAMAGED: _again,
    Reason.MACHINE: _again,
    Reason.UNOPENED: _opened,
    Reason.FAMILY: _label,
    Reason.ARCH: _label,
    Reason.DRIVER: _label,
    Reason.NO_COMPILER: _compiler,
    Reason.NO_NINJA: lambda _, facts: install_ninja(facts.host),
    Reason.NO_NVRTC: lambda _, facts: install_nvrtc(facts.host),
    **dict.fromkeys((Reason.SYSTEM, Reason.HIP, Reason.XPU, Reason.GLIBC, Reason.GLIBCXX, Reason.NO_LZMA), _nothing),
    **dict.fromkeys((Reason.PYTHON, Reason.CUDA_RUNTIME, Reason.KNOWN_BAD, Reason.NVRTC_ARCH), _nothing),
    **dict.fromkeys((Reason.SKIPPED, Reason.BUILDERS_UNKNOWN), _nothing),
}


def actions_for(rejections: Iterable[Rejection], fix: Fix) -> tuple[str, ...]:
    """Up to three commands, each of which removes every obstacle on one way to the op.

    An obstacle that blocks all ways comes first, because it must be removed. Otherwise there are two ways: other
    prebuilt files, and a build here. A way with an obstacle that no command removes is not offered.
    """
    rejections = tuple(rejections)
    blocks = [r for r in rejections if r.candidate == EVERYTHING]
    if blocks:
        return _whole(map(fix, blocks))
    pieces = list(dict.fromkeys(r.piece for r in rejections))
    of = {piece: [r for r in rejections if r.piece == piece] for piece in pieces}
    ways = (
        _whole(_first(of[piece], fix) for piece in pieces),
        _whole(_all(of[piece], JIT_CANDIDATE, fix) for piece in pieces),
    )
    return tuple(dict.fromkeys(command for way in ways for command in way))[:MOST_ACTIONS]


def _whole(steps: Iterable[str]) -> tuple[str, ...]:
    """The steps as one command; nothing if a step has no command."""
    steps = tuple(steps)
    return (both(steps),) if steps and all(steps) else ()


def _first(rejections: Iterable[Rejection], fix: Fix) -> str:
    """The first command, because the rejected files are alternatives."""
    return next(filter(None, (fix(r) for r in rejections if r.candidate not in (EVERYTHING, JIT_CANDIDATE))), "")


def _all(rejections: Iterable[Rejection], candidate: str, fix: Fix) -> str:
    """All commands together, because every one of these things is missing."""
    steps = [fix(r) for r in rejections if r.candidate == candidate]
    return both(steps) if all(steps) else ""


def judge(info: BuildInfo | None) -> str:
    """This precast with the label of what is prebuilt, for a bug report."""
    return f"precast {__version__}{'' if info is None else info.label.local}"


def both(commands: Iterable[str]) -> str:
    """All of the commands, without duplicates, as one line for a shell."""
    return " && ".join(dict.fromkeys(commands))


def install_torch(host: Host) -> str:
    """Installs a torch that every kernel works with; pip replaces a broken torch only with --force-reinstall."""
    replace = "--force-reinstall " if host.torch_error else ""
    return f'{_installer(host).install} {replace}"torch>={STABLE_FLOOR}"'


def needs_torch(what: str, host: Host) -> str:
    """The error of something that needs torch where none can be imported."""
    needed = f"an importable torch {CLASSIC_FLOOR} or newer"
    return block(f"{what} needs torch", found=host.torch_error or "no torch", needed=needed, fix=install_torch(host))


def install_compiler(host: Host) -> str:
    """Installs a C++ compiler with the system's package manager."""
    return _installer(host).compiler


def install_ninja(host: Host) -> str:
    """Installs the ninja that a JIT build needs."""
    return f"{_installer(host).install} ninja"


def install_nvrtc(host: Host) -> str:
    """Installs the NVRTC package for torch's CUDA version, otherwise for the driver's."""
    version = (host.torch.cuda if host.torch else None) or host.driver
    old = version is not None and version.major < 13
    package = "nvidia-cuda-nvrtc-cu12" if old else '"nvidia-cuda-nvrtc==13.*"'
    return f"{_installer(host).install} {package}"


def install_cuda_torch(host: Host) -> str:
    """Installs a torch with CUDA, for the driver and for every GPU here if such a build is known.

    Only torch's own index has builds for every CUDA version.
    """
    builds = [Label(name) for name in toolkits.TORCH_BUILDS.get(host.machine, ())]
    build = next((one for one in builds if _serves_all(one, host)), None) or next(
        (one for one in builds if host.driver is None or one.cuda is None or one.cuda.major <= host.driver.major), None
    )
    if build is None:
        return ""
    index = f"{toolkits.INDEX}/{build}"
    return f"{_installer(host).install} --force-reinstall torch --index-url {index}"


def other_label(host: Host, gpu: ComputeCapability, info: BuildInfo | None, settings: Settings) -> str:
    """Installs the wheel whose label serves this GPU, unless that label is installed already."""
    label = _label_for(host, gpu)
    if label is None or (info is not None and info.label == label):
        return ""
    return _wheel(_version(info), label, _index(info, settings), host)


def prebuilt_wheel(host: Host, info: BuildInfo | None, settings: Settings) -> str:
    """Installs the wheel with prebuilt files for the GPUs, or for the CPU; without an index it builds the sources.

    Under ``auto`` it offers no build: that needs the same tools as a JIT build, which is the shorter way to the op.
    """
    label = _label_for(host, host.gpus[0].capability) if host.gpus else Label("cpu")
    wheel = "" if label is None else _wheel(_version(info), label, _index(info, settings), host)
    if wheel or settings.jit is not JitMode.AOT:
        return wheel
    return _build(host)


def reinstall(host: Host, info: BuildInfo, settings: Settings) -> str:
    """Restores the files of this installation from its origin."""
    if info.mode is BuildMode.RELEASE:
        again = _wheel(info.version, info.label, _index(info, settings), host) or _same_file(host)
        return again or (_build(host) if settings.jit is JitMode.AOT else "")
    return _build(host)


def up_to_date(host: Host, info: BuildInfo | None, settings: Settings) -> str:
    """Brings prebuilt files of the code that is installed, in place of outdated ones."""
    if host.stale is None or info is None:
        return ""
    if host.stale.passing:
        return "restart this process"
    return reinstall(host, replace(info, version=__version__), replace(settings, jit=JitMode.AOT))


def restore(installer: Installer, index_url: str | None) -> str:
    """The same for an installation with an unreadable manifest; its metadata give the version and the label."""
    version, _, label = (installer.version or "").partition("+")
    wheel = _from_index(version, Label(label), index_url, installer) if _is_label(label) else ""
    return wheel or _file(installer) or _sources(installer)


def _installer(host: Host) -> Installer:
    return host.installer or _UNKNOWN


def _version(info: BuildInfo | None) -> str:
    return __version__ if info is None else info.version


def _index(info: BuildInfo | None, settings: Settings) -> str | None:
    return settings.index_url or (None if info is None else info.index_url)


def _label_for(host: Host, gpu: ComputeCapability) -> Label | None:
    """The newest label that serves every GPU here, otherwise the newest one that serves ``gpu``."""
    return next((label for label in reversed(LABELS) if _serves_all(label, host)), None) or label_for(gpu, host.driver)


def _serves_all(label: Label, host: Host) -> bool:
    return all(label_serves(label, gpu.capability, host.driver) for gpu in host.gpus)


def _is_label(text: str) -> bool:
    try:
        Label.parse(text)
    except ValueError:
        return False
    return True


def _wheel(version: str, label: Label, index: str | None, host: Host) -> str:
    return _from_index(version, label, index, _installer(host))


def _from_index(version: str, label: Label, index: str | None, installer: Installer) -> str:
    """The command for a wheel from an index that has a folder for each label (docs/guides/install.md)."""
    if index is None or not version:
        return ""
    folder = f"{index}/{label}/" if label.text else f"{index}/"
    return f'{installer.install} {_NEWLY} "precast=={version}{label.local}" --index-url {folder}'


def _same_file(host: Host) -> str:
    return _file(_installer(host))


def _file(installer: Installer) -> str:
    return "" if installer.wheel is None else f"{installer.install} {_NEWLY} {installer.wheel}"


def _build(host: Host) -> str:
    """Builds the sources for this machine; if the tools for that are missing, it installs them first."""
    build = _sources(_installer(host))
    builders: Builders | None = host.builders
    if not build or builders is None or builders.compiler is not None:
        return build
    tools = install_compiler(host)
    return both([tools, build]) if tools else ""


def _sources(installer: Installer) -> str:
    if installer.sources is None:
        return ""
    return f"CUDA_EXT=1 {installer.install} {_NEWLY} --no-cache-dir {installer.sources}"
