"""The host half of the decision: the host library for this torch on this machine, or the one to build."""

from __future__ import annotations

from collections.abc import Mapping

from precast._abi import remedy, torch_abi
from precast._abi.build_info import BuildInfo, BuildMode, HostFile
from precast._abi.decision import (
    JIT_CANDIDATE,
    PREBUILT_CANDIDATE,
    BuildHost,
    Choice,
    Need,
    Reason,
    Rejection,
    Unopened,
)
from precast._abi.host import Builders, Host, TorchInfo
from precast._abi.settings import JitMode, Settings
from precast._abi.torch_abi import CLASSIC_FLOOR, STABLE_FLOOR, Exact, Stable, TorchAbi
from precast._abi.version import dotted

FROM_SOURCE = "precast was installed from source, without prebuilt kernels"
_PIECE = "host"


def choose_host(
    host: Host,
    torch: TorchInfo,
    build_info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened],
) -> Choice[HostFile | BuildHost]:
    """Prefers an exact prebuilt library to a stable one, and a stable one to a build."""
    rejections: list[Rejection] = []
    fitting: list[HostFile] = []
    unused = why_no_prebuilt(_PIECE, build_info, settings, host)
    if unused is not None:
        rejections.append(unused)
    elif build_info is not None:
        for file in build_info.host:
            why = _misfit(file, host, torch, build_info, settings, need, bad)
            if why is None:
                fitting.append(file)
            else:
                rejections.append(why)
    if fitting:
        best = max(fitting, key=lambda file: _rank(file, settings))
        return Choice(best, tuple(rejections), _notes(best, host))
    abi, refusals = _buildable(torch, host, settings)
    return Choice(None if abi is None else BuildHost(abi), (*rejections, *refusals))


def why_no_prebuilt(piece: str, build_info: BuildInfo | None, settings: Settings, host: Host) -> Rejection | None:
    """One rejection of everything prebuilt, for either half; None if each file must be judged."""
    if settings.jit is JitMode.JIT:
        return Rejection(piece, PREBUILT_CANDIDATE, Reason.SKIPPED, "PRECAST_JIT to be auto or aot", "PRECAST_JIT=jit")
    if build_info is None:
        fix = remedy.prebuilt_wheel(host, None, settings)
        return Rejection(piece, PREBUILT_CANDIDATE, Reason.NO_PREBUILT, "prebuilt files", FROM_SOURCE, fix)
    if build_info.mode is BuildMode.PURE:
        fix = remedy.prebuilt_wheel(host, build_info, settings)
        return Rejection(piece, PREBUILT_CANDIDATE, Reason.NO_PREBUILT, "prebuilt files", FROM_SOURCE, fix)
    if host.stale is not None:
        why = host.stale
        return Rejection(piece, PREBUILT_CANDIDATE, Reason.STALE, why.wanted, why.found, why.remedy)
    if piece == _PIECE and not build_info.host:
        found = "this wheel has no host library"
        return Rejection(piece, PREBUILT_CANDIDATE, Reason.NO_PREBUILT, "a host library", found)
    return None


def _misfit(
    file: HostFile,
    host: Host,
    torch: TorchInfo,
    info: BuildInfo,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened],
) -> Rejection | None:
    """The first requirement of a library that this process does not meet."""

    def no(reason: Reason, wanted: str, found: str, fix: str = "") -> Rejection:
        return Rejection(_PIECE, file.name, reason, wanted, found, fix)

    defect = bad.get(file.name)
    if isinstance(defect, Unopened):
        return no(Reason.UNOPENED, defect.wanted, defect.found, defect.remedy)
    if defect is not None:
        return no(Reason.DAMAGED, "the library that was built", defect, remedy.reinstall(host, info, settings))
    if need.family not in file.families:
        return no(Reason.FAMILY, f"the family {need.family}", "a library with " + (", ".join(file.families) or "none"))
    if file.machine != host.machine:
        return no(Reason.MACHINE, file.machine, host.machine, remedy.reinstall(host, info, settings))
    if file.python not in ("none", "abi3", f"cp{host.python.major}{host.python.minor}"):
        return no(Reason.PYTHON, file.python, f"Python {host.python}")
    unmet = torch_abi.fits(file.abi, torch.version, torch.cxx11)
    if unmet is not None:
        fix = remedy.install_torch(host) if _meets_no_floor(torch) else ""
        return no(Reason.TORCH_ABI, torch_abi.wanted(file.abi), unmet, fix)
    if file.cuda_major is not None and (torch.cuda is None or torch.cuda.major != file.cuda_major):
        return no(
            Reason.CUDA_RUNTIME, f"a torch with CUDA {file.cuda_major}", f"torch with CUDA {torch.cuda or 'none'}"
        )
    if host.glibc is None or host.glibc < file.glibc:
        return no(Reason.GLIBC, f"glibc {file.glibc}", "another C library" if host.glibc is None else str(host.glibc))
    if host.glibcxx is not None and dotted(host.glibcxx) < dotted(file.glibcxx):
        return no(Reason.GLIBCXX, f"a libstdc++ with GLIBCXX_{file.glibcxx}", f"GLIBCXX_{host.glibcxx}")
    return None


def _rank(file: HostFile, settings: Settings) -> tuple[bool, bool, bool, tuple[int, int]]:
    exact = isinstance(file.abi, Exact)
    git = isinstance(file.abi, Exact) and file.abi.git is not None
    floor = (file.abi.floor.major, file.abi.floor.minor) if isinstance(file.abi, Stable) else (0, 0)
    return exact, git, file.debug == settings.debug, floor


def _notes(file: HostFile, host: Host) -> tuple[str, ...]:
    if host.glibcxx is not None:
        return ()
    return (f"the level of libstdc++ could not be read; {file.name} needs GLIBCXX_{file.glibcxx}",)


def _meets_no_floor(torch: TorchInfo) -> bool:
    """Whether this torch is older than the stable ABI. A pre-release of the ABI's first version counts as older."""
    return torch_abi.fits(Stable(STABLE_FLOOR), torch.version, torch.cxx11) is not None


def _buildable(torch: TorchInfo, host: Host, settings: Settings) -> tuple[TorchAbi | None, list[Rejection]]:
    """The ABI to build for, or every reason why nothing can be built.

    Under ``aot`` the builders are not probed until an error needs a fix. From then on a missing builder counts: the fix
    may be to allow a build, which would then fail.
    """

    def no(reason: Reason, wanted: str, found: str, fix: str = "") -> Rejection:
        return Rejection(_PIECE, JIT_CANDIDATE, reason, wanted, found, fix)

    builders, install_torch = host.builders, remedy.install_torch(host)
    refusals = []
    if settings.jit is JitMode.AOT:
        refusals.append(no(Reason.AOT_ONLY, "PRECAST_JIT to be auto or jit", "PRECAST_JIT=aot", remedy.ALLOW_JIT))
        if builders is None:
            return None, refusals
    if torch.version.release < CLASSIC_FLOOR:
        wanted = f"torch {CLASSIC_FLOOR} or newer to build a host library for"
        return None, [*refusals, no(Reason.CLASSIC_JIT, wanted, f"torch {torch.version}", install_torch)]
    abi = _abi_of(torch)
    if abi is None:
        found = f"torch {torch.version}, whose git version is {torch.version.git or 'not known'}"
        wanted = f"a release of torch {STABLE_FLOOR} or newer, or the commit of an older one or of a pre-release"
        return None, [*refusals, no(Reason.TORCH_ABI, wanted, found, install_torch)]
    if builders is None:
        return None, [no(Reason.BUILDERS_UNKNOWN, "a C++ compiler and ninja", "nobody has looked for them yet")]
    compiler = remedy.install_compiler(host) if settings.cxx is None else "unset CXX"
    if builders.compiler is None:
        found = looked_at(builders, "compiler")
        refusals.append(no(Reason.NO_COMPILER, "a C++ compiler, g++ or clang++", found, compiler))
    elif torch_abi.compiled_for(abi) is None and builders.compiler.kind != "g++":
        # Other compilers use a different OpenMP from torch's libraries, and classic code runs on torch's threads.
        found = f"{builders.compiler.kind} {builders.compiler.version} ({builders.compiler.path})"
        refusals.append(no(Reason.NO_COMPILER, f"g++, for torch {torch.version}", found, compiler))
    if builders.ninja is None:
        refusals.append(no(Reason.NO_NINJA, "ninja", looked_at(builders, "ninja"), remedy.install_ninja(host)))
    return (None, refusals) if refusals else (abi, [])


def _abi_of(torch: TorchInfo) -> TorchAbi | None:
    """The stable ABI if this torch meets its floor; otherwise an ABI bound to the exact commit of this torch."""
    stable = Stable(STABLE_FLOOR)
    if torch_abi.fits(stable, torch.version, torch.cxx11) is None:
        return stable
    git = torch.version.git
    if git is None or not torch_abi.is_git_version(git):
        return None
    return Exact(torch.version.release, torch.cxx11, git)


def looked_at(builders: Builders, what: str) -> str:
    """The places where a builder was looked for, from the lines of ``looked_at`` that begin with its name."""
    places = [line.removeprefix(f"{what}:").strip() for line in builders.looked_at if line.startswith(f"{what}:")]
    return "none that works" + (f" (looked at {'; '.join(places)})" if places else "")
