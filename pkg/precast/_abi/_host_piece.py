"""The host half of the decision: the library for this machine and what binds it to this torch, or what to build."""

from __future__ import annotations

from collections.abc import Mapping

from precast._abi import remedy, torch_abi
from precast._abi.build_info import BuildInfo, BuildMode, HostFile, HostKind
from precast._abi.decision import (
    JIT_CANDIDATE,
    OWN_FUNCTIONS,
    PREBUILT_CANDIDATE,
    Binding,
    BuildAdapter,
    BuildHost,
    Choice,
    Need,
    OwnFunctions,
    Reason,
    Rejection,
    Unopened,
)
from precast._abi.host import Builders, Host, TorchInfo
from precast._abi.settings import JitMode, Settings
from precast._abi.torch_abi import CLASSIC_FLOOR, STABLE_FLOOR, Exact, Stable
from precast._abi.version import dotted

FROM_SOURCE = "precast was installed from source, without prebuilt kernels"
LIBRARY, BINDING = "host", "torch"
_OF_KIND = {HostKind.LIBRARY: LIBRARY, HostKind.ADAPTER: BINDING}


def choose_host(
    host: Host,
    torch: TorchInfo,
    build_info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened],
) -> Choice[HostFile | BuildHost]:
    """Prefers a library for exactly this torch to one for many, and any to a build."""
    best, rejections = _best(HostKind.LIBRARY, host, torch, build_info, settings, need, bad)
    if best is not None:
        return Choice(best, rejections, _notes(best, host))
    refusals = _no_build(LIBRARY, host, settings)
    return Choice(None if refusals else BuildHost(), (*rejections, *refusals))


def choose_binding(
    host: Host,
    torch: TorchInfo,
    build_info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened],
) -> Choice[Binding]:
    """Torch's own functions if it has them all, else a prebuilt adapter to it, else the build of one.

    Whether they are all there shows when the library is opened; ``bad`` then says what is wrong with them.
    """
    rejections: tuple[Rejection, ...] = ()
    if torch.version.release >= STABLE_FLOOR:
        if OWN_FUNCTIONS not in bad:
            return Choice(OwnFunctions(prove=torch.version.is_prerelease), ())
        wanted = f"the functions of torch {STABLE_FLOOR}"
        rejections = (Rejection(BINDING, OWN_FUNCTIONS, Reason.TORCH_ABI, wanted, str(bad[OWN_FUNCTIONS])),)
    best, others = _best(HostKind.ADAPTER, host, torch, build_info, settings, need, bad)
    if best is not None:
        return Choice(best, others)
    abi, refusals = _buildable(torch, host, settings)
    return Choice(None if abi is None else BuildAdapter(abi), (*rejections, *others, *refusals))


def _best(
    kind: HostKind,
    host: Host,
    torch: TorchInfo,
    info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened],
) -> tuple[HostFile | None, tuple[Rejection, ...]]:
    """The best prebuilt file of a kind that fits, and the rejections of the others."""
    unused = why_no_prebuilt(_OF_KIND[kind], info, settings, host)
    if unused is not None or info is None:
        return None, () if unused is None else (unused,)
    rejections: list[Rejection] = []
    fitting: list[HostFile] = []
    for file in info.host:
        if file.kind is kind:
            why = _misfit(file, host, torch, info, settings, need, bad)
            if why is None:
                fitting.append(file)
            else:
                rejections.append(why)
    best = max(fitting, key=lambda file: _rank(file, settings), default=None)
    return best, tuple(rejections)


def why_no_prebuilt(piece: str, build_info: BuildInfo | None, settings: Settings, host: Host) -> Rejection | None:
    """One rejection of everything prebuilt, for any piece; None if each file must be judged."""
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
    if piece == LIBRARY and not any(file.kind is HostKind.LIBRARY for file in build_info.host):
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
    """The first requirement of a library or an adapter that this process does not meet."""

    def no(reason: Reason, wanted: str, found: str, fix: str = "") -> Rejection:
        return Rejection(_OF_KIND[file.kind], file.name, reason, wanted, found, fix)

    defect = bad.get(file.name)
    if isinstance(defect, Unopened):
        return no(Reason.UNOPENED, defect.wanted, defect.found, defect.remedy)
    if defect is not None:
        return no(Reason.DAMAGED, "the library that was built", defect, remedy.reinstall(host, info, settings))
    if file.kind is HostKind.LIBRARY and need.family not in file.families:
        return no(Reason.FAMILY, f"the family {need.family}", "a library with " + (", ".join(file.families) or "none"))
    if file.machine != host.machine:
        return no(Reason.MACHINE, file.machine, host.machine, remedy.reinstall(host, info, settings))
    if file.python not in ("none", "abi3", f"cp{host.python.major}{host.python.minor}"):
        return no(Reason.PYTHON, file.python, f"Python {host.python}")
    unmet = torch_abi.fits(file.abi, torch.version, torch.cxx11)
    if unmet is not None:
        fix = remedy.install_torch(host) if torch.version.release < STABLE_FLOOR else ""
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


def _rank(file: HostFile, settings: Settings) -> tuple[bool, bool, bool, bool, tuple[int, int]]:
    """A library that is linked against torch comes before one that has yet to be bound to it."""
    exact = isinstance(file.abi, Exact)
    git = isinstance(file.abi, Exact) and file.abi.git is not None
    floor = (file.abi.floor.major, file.abi.floor.minor) if isinstance(file.abi, Stable) else (0, 0)
    return exact, git, isinstance(file.abi, Stable), file.debug == settings.debug, floor


def _notes(file: HostFile, host: Host) -> tuple[str, ...]:
    if host.glibcxx is not None:
        return ()
    return (f"the level of libstdc++ could not be read; {file.name} needs GLIBCXX_{file.glibcxx}",)


def _no_build(piece: str, host: Host, settings: Settings, torch: TorchInfo | None = None) -> list[Rejection]:
    """Every reason why a piece cannot be built; an adapter to ``torch`` asks for more than a library.

    Under ``aot`` the builders are not probed until an error needs a fix. From then on a missing builder counts: the fix
    may be to allow a build, which would then fail.
    """

    def no(reason: Reason, wanted: str, found: str, fix: str = "") -> Rejection:
        return Rejection(piece, JIT_CANDIDATE, reason, wanted, found, fix)

    builders, refusals = host.builders, []
    if settings.jit is JitMode.AOT:
        refusals.append(no(Reason.AOT_ONLY, "PRECAST_JIT to be auto or jit", "PRECAST_JIT=aot", remedy.ALLOW_JIT))
    if builders is None:
        if not refusals:
            refusals = [no(Reason.BUILDERS_UNKNOWN, "a C++ compiler and ninja", "nobody has looked for them yet")]
        return refusals
    compiler = remedy.install_compiler(host) if settings.cxx is None else "unset CXX"
    if builders.compiler is None:
        found = looked_at(builders, "compiler")
        refusals.append(no(Reason.NO_COMPILER, "a C++ compiler, g++ or clang++", found, compiler))
    elif torch is not None and builders.compiler.kind != "g++":
        # Other compilers use a different OpenMP from torch's libraries, and an adapter runs loops on torch's threads.
        found = f"{builders.compiler.kind} {builders.compiler.version} ({builders.compiler.path})"
        refusals.append(no(Reason.NO_COMPILER, f"g++, for torch {torch.version}", found, compiler))
    if builders.ninja is None:
        refusals.append(no(Reason.NO_NINJA, "ninja", looked_at(builders, "ninja"), remedy.install_ninja(host)))
    return refusals


def _buildable(torch: TorchInfo, host: Host, settings: Settings) -> tuple[Exact | None, list[Rejection]]:
    """The torch to build an adapter to, bound to its commit, or every reason why none can be built."""
    fix, git = remedy.install_torch(host), torch.version.git
    impossible = None
    if torch.version.release < CLASSIC_FLOOR:
        wanted, found = f"torch {CLASSIC_FLOOR} or newer to build an adapter to", f"torch {torch.version}"
        impossible = Rejection(BINDING, JIT_CANDIDATE, Reason.CLASSIC_JIT, wanted, found, fix)
    elif git is None or not torch_abi.is_git_version(git):
        found = f"torch {torch.version}, whose git version is {git or 'not known'}"
        wanted = f"a torch {STABLE_FLOOR} or newer with all of its functions, or the commit of this one"
        impossible = Rejection(BINDING, JIT_CANDIDATE, Reason.TORCH_ABI, wanted, found, fix)
    refusals = _no_build(BINDING, host, settings, torch)
    if impossible is not None:
        return None, [*(why for why in refusals if why.reason is Reason.AOT_ONLY), impossible]
    return (None, refusals) if refusals else (Exact(torch.version.release, torch.cxx11, git), [])


def looked_at(builders: Builders, what: str) -> str:
    """The places where a builder was looked for, from the lines of ``looked_at`` that begin with its name."""
    places = [line.removeprefix(f"{what}:").strip() for line in builders.looked_at if line.startswith(f"{what}:")]
    return "none that works" + (f" (looked at {'; '.join(places)})" if places else "")
