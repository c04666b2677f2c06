"""Turn a choice into text and exceptions: what failed, what was found, what was needed, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from precast._abi import fixes
from precast._abi.decision import FROM_SOURCE, Refuse, all_rejections
from precast._abi.settings import JitMode, Settings
from precast._builder.catalogue import Family
from precast._load import library, prebuilt, probe
from precast._load.choose import Choice, choose
from precast._load.source import Source
from precast.core import explain
from precast.core.host import Builders, Host
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.reasons import Need, Reason, Rejection
from precast.errors import JitDisabled, KernelError, KernelIncompatible, KernelUnavailable

DOCTOR = "python -m precast doctor"
_FORBIDDEN = {Reason.AOT_ONLY, Reason.JIT_OFF}


def assert_served(family: Family, device: str) -> None:
    """Raise the error that ``loader.ensure`` would raise for reasons of this host; builds and loads nothing."""
    if device not in family.devices:
        raise wrong_device(family, device)
    need = Need(family.name, "cuda" if device == "cuda" else "cpu")
    choice = choose(need, probe.read_settings(), {}, certain=False)
    if isinstance(choice.decision, Refuse):
        raise refusal(choice)


def sees_cuda_gpu() -> bool:
    """Whether torch is a CUDA build and a GPU is visible, without creating a CUDA context."""
    host = probe.probe_host(probe.read_settings(), gpus=True)
    return host.torch is not None and host.torch.cuda is not None and host.torch.hip is None and bool(host.gpus)


def assert_not_pure() -> None:
    """Raise KernelUnavailable if this installation has nothing prebuilt."""
    info = prebuilt.load_build_info()
    if info is not None and info.mode is not BuildMode.PURE:
        return
    raise KernelUnavailable(
        "this installation has nothing prebuilt",
        found=FROM_SOURCE,
        needed="a release wheel, such as that of +cu130 or +cpu, or a build with CUDA_EXT=1",
        fix=prebuilt_fix(info) or "import the op from precast.kernel_loader, which builds missing kernels",
    )


def prebuilt_fix(info: BuildInfo | None) -> str:
    """The command that installs prebuilt files where there are none; empty if no such command is known."""
    settings = replace(probe.read_settings(), jit=JitMode.AOT)
    host = probe.probe_host(settings, gpus=True)
    host = replace(host, builders=probe.probe_builders(settings), installer=probe.probe_installer())
    return fixes.prebuilt_wheel(host, info, settings)


def refusal(choice: Choice) -> KernelError:
    """The exception for a decision to refuse; JitDisabled if a setting forbids the build."""
    rejections = all_rejections(choice.decision)
    need = choice.need
    if choice.settings.cpu_level is not None and rejections[0].reason is Reason.CPU_LEVEL:
        return library.wrong_level(choice.settings.cpu_level, rejections[0].found)
    forbidden = any(rejection.reason in _FORBIDDEN for rejection in rejections)
    kind = JitDisabled if forbidden else KernelUnavailable
    return _explain(kind, f"cannot be loaded for {need.device}", choice, rejections)


def gpu_refusal(choice: Choice, index: int, rejections: Sequence[Rejection]) -> KernelError:
    """The error of a launch on a GPU that no device code serves, while other GPUs of the machine are served."""
    return _explain(KernelUnavailable, f"cannot run on cuda:{index}", choice, rejections)


def cannot_open(choice: Choice, host: Source, what: str) -> KernelIncompatible:
    """The exception for a library that was built here but that the dynamic linker refuses."""
    return KernelIncompatible(
        f"{choice.need.family}: the library built for this machine cannot be opened",
        found=f"{host.path}: {what}",
        needed="a library that the dynamic linker of this machine opens",
        env=explain.environment(choice.host, fixes.judge(choice.build_info)),
        fix=f"report this, with the output of: {DOCTOR} --json",
    )


def wrong_device(family: Family, device: str) -> KernelUnavailable:
    """The exception for a device type that a family has no kernels for, on any machine."""
    return KernelUnavailable(
        f"has no {device} kernels",
        about=family.name,
        found=f"the device {device}, of a tensor or by name",
        needed=f"the device {' or '.join(family.devices)}",
        fix=f"name the device {family.devices[-1]!r}, and move tensors to it: tensor.to({family.devices[-1]!r})",
    )


def unknown_op(asked: str, name: str, names: Sequence[str]) -> KernelUnavailable:
    """The exception for an op that does not exist, with the name that was probably meant."""
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    fix = [f"precast.load({name!r})" for name in close] or ["python -m precast list"]
    return KernelUnavailable(
        f"{asked!r} cannot be loaded",
        found="no function or class of that name",
        needed=f"one of {', '.join(names)}",
        fix=fix,
    )


def cannot_build(what: str, wanted: str, places: Sequence[str], fix: str) -> KernelUnavailable:
    """The exception for a build that lacks something; ``places`` says where it was looked for."""
    return KernelUnavailable(f"{what} cannot be built", found=places, needed=wanted, fix=fix)


def missing_tools(builders: Builders, settings: Settings, *packages: str) -> str:
    """The command for a missing compiler, ninja and these packages; without one, what examines this machine."""
    from precast._builder import installer  # imported for errors alone
    from precast.core import pip

    steps = []
    if builders.compiler is None:
        steps.append("unset CXX" if settings.cxx else installer.compiler_command() or "")
    names = [*([] if builders.ninja else ["ninja"]), *packages]
    if names:
        steps.append(f"{pip.install_command()} {' '.join(names)}")
    return fixes.both(steps) if all(steps) else f"install g++, and see {DOCTOR}"


def wrong_machine(name: str, wanted: str | None, found: str) -> KernelUnavailable:
    """The exception for an extension of another CPU architecture."""
    return KernelUnavailable(
        f"{name} cannot be loaded here: it is for {wanted} machines",
        found=found,
        needed=str(wanted),
        fix="call .load() without ext_name: the loader then chooses",
    )


def _explain(
    kind: type[KernelUnavailable], what: str, choice: Choice, rejections: Iterable[Rejection]
) -> KernelUnavailable:
    rejections, about = tuple(rejections), choice.need.family
    env = explain.environment(choice.host, fixes.judge(choice.build_info))
    actions = fixes.actions_for(rejections, fixer(choice))
    headline = explain.headline(what, rejections, about)
    return explain.explain(kind, headline, rejections, env, actions, more=DOCTOR, about=about)


def fixer(choice: Choice) -> fixes.Fix:
    """What finds the command that removes a reason against a candidate, for a person who is told of it."""
    host = choice.host
    if host.installer is None and host.system == "Linux":
        host = replace(host, installer=probe.probe_installer())
    facts = fixes.Facts(host, choice.build_info, choice.settings, choice.bad)
    return lambda why: fixes.of(why, facts)


def stale_fix(host: Host, info: BuildInfo | None, settings: Settings) -> str:
    """The command that brings prebuilt files of the installed code in place of outdated ones."""
    if host.installer is None:
        host = replace(host, installer=probe.probe_installer())
    return fixes.up_to_date(host, info, settings)
