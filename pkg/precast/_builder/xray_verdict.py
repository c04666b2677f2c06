"""Judge what ``xray`` read: what is wrong with a wheel anywhere, and whether it works on one machine.

A library is judged by the same :func:`precast._abi.decide.choose_library` that chooses ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace

from precast._abi.build_info import BuildInfo, BuildMode, HostFile, HostKind
from precast._abi.capability import ComputeCapability, TargetKind
from precast._abi.decide import Case, choose_library
from precast._abi.decision import JIT_CANDIDATE, Need
from precast._abi.host import Gpu, Host, TorchInfo
from precast._abi.label import Label
from precast._abi.settings import JitMode, Settings
from precast._abi.torch_abi import Exact, Stable
from precast._abi.value import value
from precast._abi.version import CudaVersion, Release, TorchVersion
from precast._abi.violation import Violation
from precast._builder import bindings, torch_names
from precast._builder.xray import Contents, Library

# Libraries of torch, CUDA and OpenMP. A copy in the wheel would be loaded as a second one in the same process.
FOREIGN = re.compile(
    r"lib((torch(_(cpu|cuda|cuda_linalg|hip|xpu|python|global_deps|nvshmem))?|c10(_cuda|_hip|_xpu)?|gomp|i?omp\d*)"
    r"|cu[a-z]\w*|nv\w*|nccl\w*|stdc\+\+|gcc_s|python[\d.]*)([.-][\w.+-]*)?\.so[\w.-]*"
)
# A copy of a CUDA library under a name of its own, as auditwheel gives it. It is as safe as one linked statically.
_OWN_COPY = re.compile(r"lib(cu[a-z]\w*|nv\w*)[.-][0-9a-f]{8}\.so[\w.-]*")
# What torch, CUDA's packages and the system provide (PEP 600's libraries, and Python's own).
PROVIDED = re.compile(
    FOREIGN.pattern + r"|lib(c|m|dl|rt|pthread|util|nsl|resolv|z|expat|X11|Xext|Xrender|ICE|SM|GL|shm|mkl\w*"
    r"|gobject-2\.0|gthread-2\.0|glib-2\.0)\.so[\w.-]*|ld-linux[\w.-]*"
)
_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PLATFORM = re.compile(r"(manylinux(?:1|2010|2014)|manylinux_(\d+)_(\d+)|linux)_(x86_64|aarch64)")
# The first driver branch with each CUDA version (CUDA Toolkit release notes, table 3).
_BRANCHES = {525: (12, 0), 530: (12, 1), 535: (12, 2), 545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6)}
_BRANCHES |= {565: (12, 7), 570: (12, 8), 575: (12, 9), 580: (13, 0), 590: (13, 1), 595: (13, 2)}


@value(frozen=True)
class Machine:
    """The machine that a user names; None for a part that must not matter."""

    torch: TorchVersion | None = None
    gpu: ComputeCapability | None = None
    driver: CudaVersion | None = None
    python: Release | None = None
    glibc: Release | None = None


@value(frozen=True)
class Verdict:
    """Whether a library works on a machine: ``"yes"``, ``"no"`` or ``"unknown"``, with the reasons against it."""

    answer: str
    why: tuple[str, ...]


def is_foreign(name: str) -> bool:
    """Whether a library in a wheel would be a second one of torch, CUDA or OpenMP in its process."""
    return FOREIGN.fullmatch(name) is not None and _OWN_COPY.fullmatch(name) is None


def driver_version(text: str) -> CudaVersion:
    """The CUDA version of a driver: of ``"580"``, ``"580.65.06"`` or ``"13.0"``. ValueError for anything else."""
    branch = text.partition(".")[0]
    if len(branch) == 3 and branch.isdecimal():
        known = [cuda for first, cuda in _BRANCHES.items() if int(branch) >= first]
        if known:
            return CudaVersion(*known[-1])
        raise ValueError(f"driver {text} is older than CUDA 12; wanted {min(_BRANCHES)} or newer")
    return CudaVersion.parse(text)


def host_file(library: Library, torch: Exact | None) -> HostFile | None:
    """The manifest entry of a library; None if its torch is needed for that and not known."""
    abi = library.abi(torch)
    if abi is None:
        return None
    info = library.info
    return HostFile(
        path=f"host/{library.path.rpartition('/')[2]}",
        sha256=hashlib.sha256(library.data).hexdigest(),
        bytes=len(library.data),
        abi=abi,
        machine=info.machine,
        needed=info.needed,
        glibc=Release(*(*info.glibc, 0, 0)[:2]),
        glibcxx=".".join(map(str, info.glibcxx or (3, 4))),
        cpu_levels=(),
        families=(library.module.rpartition(".")[2],),
        python="none" if library.python == "unknown" else library.python,
        cuda_major=library.bound.cudart,
        code=library.code,
        cpu=library.cpu.required,
    )


def judge(contents: Contents, library: Library, machine: Machine) -> Verdict:
    """Whether a library works on that machine, with the libraries of the wheel that it links."""
    there = _there(contents, library)
    seen, left = {library.path: _judge(contents, library, machine)}, [library]
    while left:
        for name in left.pop().info.needed:
            if name in there and there[name].path not in seen:
                left.append(there[name])
                seen[left[-1].path] = _judge(contents, left[-1], machine)
            elif name not in there and not PROVIDED.fullmatch(name):
                seen[name] = Verdict("unknown", (f"needs {name}, which is not in the wheel and not torch's",))
    first, *others = seen.items()
    order = ("no", "unknown", "yes")
    answer = min((verdict.answer for verdict in seen.values()), key=order.index)
    linked = (f"{where}: {why}" for where, verdict in others if verdict.answer == answer for why in verdict.why)
    return Verdict(answer, (*first[1].why, *linked))


def _there(contents: Contents, library: Library) -> dict[str | None, Library]:
    """The libraries of a wheel by the names under which one finds them: those that its manifest lists, or all."""
    if library.listed is not None:
        folder = library.path.removesuffix(library.listed.path)
        by_path = {one.path: one for one in contents.libraries}
        return {soname: by_path[f"{folder}{path}"] for soname, path in library.listed.links if folder + path in by_path}
    return {name: one for one in contents.libraries for name in (one.path.rpartition("/")[2], one.info.soname)}


def _judge(contents: Contents, library: Library, machine: Machine) -> Verdict:
    lacks = None if library.listed is not None else _torch(contents, library, machine.torch)
    if lacks is not None and lacks.answer == "no":
        return lacks
    torch = machine.torch or TorchVersion.parse("2.10.0")
    cxx11 = library.cxx11 is not False if machine.torch is None else _has_cxx11(machine.torch)
    file = library.listed or host_file(library, Exact(torch.release, cxx11))
    if file is not None and (file.links or file.kind is HostKind.LINKED):  # each by itself; judge() follows the links
        file = replace(file, links=(), kind=HostKind.LIBRARY, families=file.families or ("linked",))
    if file is None:
        return Verdict("no", ("it needs functions of torch's stable interface that no known torch has",))
    if machine.torch is None and isinstance(file.abi, Stable):
        torch = TorchVersion.parse(f"{file.abi.floor}.0")
    elif machine.torch is None and isinstance(file.abi, Exact):
        torch, cxx11 = TorchVersion.parse(f"{file.abi.release}.0"), file.abi.cxx11
    rejections = choose_library(
        Case(_host(file, torch, cxx11, machine), _info(file), _AOT, Need(file.families[0], "cpu"), {})
    )
    why = tuple(
        f"{one.reason.value}: needs {one.wanted}; found {one.found}"
        for one in rejections.rejections
        if one.candidate != JIT_CANDIDATE
    )
    if why:
        return Verdict("no", why)
    return lacks or Verdict("yes", ())


def overall(contents: Contents, machine: Machine) -> str | None:
    """The answer for the whole file: of the libraries behind one guard the best counts, and of all guards the worst.

    None without a library that can be judged: an adapter of precast's own works only with its library.
    """
    order = ("no", "unknown", "yes")
    best: dict[str, str] = {}
    for library in contents.libraries:
        if library.listed is None or library.listed.families:
            folder, listed = library.path.rpartition("/")[0], library.listed
            guard = library.path if listed is None else f"{folder} {listed.families}"
            answer = judge(contents, library, machine).answer
            best[guard] = max(best.get(guard, answer), answer, key=order.index)
    return min(best.values(), key=order.index, default=None)


def problems(contents: Contents) -> Iterator[Violation]:
    """What is wrong with a wheel whatever the machine."""
    for where, why in contents.unread:
        yield Violation("library", where, "a shared library of x86_64 or aarch64", why)
    runtimes = {library.bound.cudart for library in contents.libraries if library.bound.cudart}
    if len(runtimes) > 1:
        yield Violation("CUDA runtime", contents.name, "one CUDA major", ", ".join(map(str, sorted(runtimes))))
    of_torch = any(library.needs_torch for library in contents.libraries)
    for library in contents.libraries:
        if of_torch and is_foreign(library.path.rpartition("/")[2]):
            where = "torch, CUDA and OpenMP from where torch is installed"
            yield Violation("bundled", library.path, where, "in the wheel")
            continue
        yield from _own(library)
        if contents.tag is not None:
            yield from _tag(contents, library)


def _own(library: Library) -> Iterator[Violation]:
    if library.error:
        yield Violation("code", library.path, "machine code and device code that can be read", library.error)
    if bindings.brings_runtime(library.info):
        yield Violation("C++ runtime", library.path, "libstdc++.so.6 of the process", "one linked into it")
    if library.cpu.required:
        found = f"{', '.join(library.cpu.required)}, without asking the processor"
        yield Violation("CPU", library.path, "instructions that every processor has", found)
    if library.needs_torch:
        missing = library.missing()
        if all(missing.values()):
            release, names = min(missing.items(), key=lambda item: len(item[1]))
            yield Violation("torch", library.path, "names that some torch has", f"{names[0]}, not in torch {release}")
    real = {code.target.capability for code in library.code if code.target.kind is TargetKind.SASS}
    if real and not any(code.target.kind is TargetKind.PTX for code in library.code):
        newest = max(real)
        if newest.major < 9:
            yield Violation("GPU", library.path, "PTX, or code for newer GPUs", f"code for at most {newest}.x alone")


def _tag(contents: Contents, library: Library) -> Iterator[Violation]:
    """The tag of a wheel promises no more than its library keeps."""
    if contents.tag is None:
        raise AssertionError("a tag was there")
    python, abi, platform = contents.tag
    if library.python != "none" and abi == "none":
        yield Violation("tag", library.path, "a wheel for the Python whose functions it calls", f"{python}-{abi}")
    if library.python.startswith("cp") and abi.startswith("cp") and library.python not in abi.split("."):
        yield Violation("tag", library.path, f"a wheel for {library.python}", f"{python}-{abi}")
    for one in platform.split("."):
        known = _PLATFORM.fullmatch(one)
        if known is None or known[4] != library.info.machine:
            yield Violation("tag", library.path, f"a platform of {library.info.machine}", one)
            continue
        promised = _MANYLINUX.get(known[1]) or ((int(known[2]), int(known[3])) if known[2] else None)
        if promised is not None and library.info.glibc[:2] > promised:
            needs = ".".join(map(str, library.info.glibc))
            yield Violation("glibc", library.path, f"at most {promised[0]}.{promised[1]}, as {one} says", needs)
    label = re.search(r"cu(\d\d)\d+", contents.version.partition("+")[2])
    if label is not None and library.bound.cudart not in (None, int(label[1])):
        yield Violation(
            "label", library.path, f"CUDA {label[1]}, as +{label[0]} says", f"libcudart.so.{library.bound.cudart}"
        )


def _torch(contents: Contents, library: Library, torch: TorchVersion | None) -> Verdict | None:
    """What can be said about a torch; None if it fits."""
    if torch is None or not library.needs_torch:
        return None
    missing = library.missing()
    if missing.get(torch.release):
        names = missing[torch.release]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return Verdict("no", (f"torch-abi: torch {torch.release} does not have {names[0]}{more}",))
    if library.bound.torch_cuda and torch.local == "cpu":
        return Verdict("no", (f"cuda-runtime: needs torch's CUDA libraries; found torch {torch}",))
    if not library.bound.classic:
        return None
    if library.cxx11 not in (None, _has_cxx11(torch)):
        return Verdict("no", (f"torch-abi: needs cxx11 ABI {int(bool(library.cxx11))}; torch {torch} has the other",))
    if contents.stated is not None:
        if contents.stated == torch.release:
            return None
        return Verdict("no", (f"torch-abi: needs torch {contents.stated}, as its metadata say; found torch {torch}",))
    fitting = [str(release) for release, names in missing.items() if not names]
    if len(fitting) == 1:
        return None
    several = f"one of torch {', '.join(fitting)} built it, and only that one is safe: its C++ has no stable ABI"
    return Verdict("unknown", (several,))


def _has_cxx11(torch: TorchVersion) -> bool:
    """The C++ ABI of PyPI's build of a torch; torch 2.7 and newer have the new one."""
    return next((one.cxx11 for one in torch_names.recorded() if one.release == torch.release), True)


_AOT = Settings(jit=JitMode.AOT)


def _host(file: HostFile, torch: TorchVersion, cxx11: bool, machine: Machine) -> Host:
    """A machine that meets every need of the library but for what the user named."""
    of_torch = re.search(r"cu(\d\d)(\d+)", torch.local or "")
    cuda = CudaVersion(int(of_torch[1]), int(of_torch[2])) if of_torch else None
    if cuda is None and file.cuda_major is not None and torch.local != "cpu":
        cuda = CudaVersion(file.cuda_major, 0)
    exact = file.python.removeprefix("cp3").removesuffix("t")
    python = machine.python or Release(3, int(exact) if exact.isdecimal() else 12)
    gpus = (Gpu(0, machine.gpu, "the GPU named"),) if machine.gpu is not None else ()
    driver = machine.driver or max((code.min_driver for code in file.code), default=CudaVersion(99, 0))
    return Host(
        "Linux", file.machine, python, machine.glibc or file.glibc, file.glibcxx, TorchInfo(torch, cxx11, cuda),
        driver=driver, gpus=gpus,
    )  # fmt: skip


def _info(file: HostFile) -> BuildInfo:
    return BuildInfo("0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, host=(file,))
