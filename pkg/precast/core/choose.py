"""Choose a library among those of a manifest: the best one that fits the process, and a reason against each other one.

Pure: frozen values in, a value out. Our own libraries, those of other packages and what ``xray`` reads of any wheel are
all chosen here. The rules, in this order: what is damaged; what it has; this process (machine, Python, torch, CUDA, C
and C++ library); the code inside of it. A library with others that it links fits if all of them do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from . import torch_abi
from .capability import CompiledCode, TargetKind
from .host import Gpu, Host, TorchInfo
from .manifest import BuildInfo, HostFile, HostKind
from .reasons import PREBUILT_CANDIDATE, Pick, Reason, Rejection
from .value import value
from .version import dotted

if TYPE_CHECKING:
    from .known_bad import KnownBad

LIBRARY, BINDING = "host", "torch"


@value(frozen=True)
class Asked:
    """What a choice depends on: the process, the manifest, and the name of what is asked for.

    ``bad`` has what is against single files, by their paths. ``debug`` prefers a debug build of the library.
    """

    host: Host
    info: BuildInfo
    family: str
    bad: Mapping[str, Rejection]
    debug: bool = False

    @property
    def torch(self) -> TorchInfo:
        """The torch of the host, which the caller has looked for."""
        if self.host.torch is None:
            raise AssertionError(f"a library of {self.family} was to be chosen without torch")
        return self.host.torch


def library(asked: Asked) -> Pick[HostFile]:
    """The best library that fits; one for exactly this torch comes before one for many."""
    if not any(file.kind is HostKind.LIBRARY for file in asked.info.host):
        why = Rejection(Reason.NO_PREBUILT, "a host library", "this wheel has no host library")
        return Pick(None, (why.at(LIBRARY, PREBUILT_CANDIDATE),))
    return best(asked, HostKind.LIBRARY, LIBRARY)


def best(asked: Asked, kind: HostKind, piece: str) -> Pick[HostFile]:
    """The best file of a kind that fits, and the rejections of the others."""
    rejections: list[Rejection] = []
    chosen: HostFile | None = None
    for file in asked.info.host:
        if file.kind is kind:
            why = next(_unmet(file, asked), None)
            if why is not None:
                rejections.append(why.at(piece, file.path))
            elif chosen is None or _rank(file, asked) > _rank(chosen, asked):
                chosen = file
    return Pick(chosen, tuple(rejections))


def _unmet(file: HostFile, asked: Asked) -> Iterator[Rejection]:
    """The requirements of a library with those that it links, or of an adapter, that this process does not meet."""
    linked = asked.info.linked(file) if file.links else ()
    for one in (file, *linked):
        defect = asked.bad.get(one.path)
        if defect is not None:
            yield defect
    if file.kind is HostKind.LIBRARY and asked.family not in file.families:
        has = ", ".join(file.families) or "none"
        yield Rejection(Reason.FAMILY, f"the family {asked.family}", f"a library with {has}")
    for one in (file, *linked):
        yield from _unmet_by_process(one, asked.host, asked.torch)


def _unmet_by_process(file: HostFile, host: Host, torch: TorchInfo) -> Iterator[Rejection]:
    if file.machine != host.machine:
        yield Rejection(Reason.MACHINE, file.machine, host.machine)
    if file.python not in ("none", "abi3", f"cp{host.python.major}{host.python.minor}"):
        yield Rejection(Reason.PYTHON, file.python, f"Python {host.python}")
    unlike = torch_abi.fits(file.abi, torch.version, torch.cxx11)
    if unlike is not None:
        yield Rejection(Reason.TORCH_ABI, torch_abi.needed(file.abi), unlike)
    if file.cuda_major is not None and (torch.cuda is None or torch.cuda.major != file.cuda_major):
        wanted = f"a torch with CUDA {file.cuda_major}"
        yield Rejection(Reason.CUDA_RUNTIME, wanted, f"torch with CUDA {torch.cuda or 'none'}")
    if host.glibc is None or host.glibc < file.glibc:
        yield Rejection(
            Reason.GLIBC, f"glibc {file.glibc}", "another C library" if host.glibc is None else str(host.glibc)
        )
    if host.glibcxx is not None and dotted(host.glibcxx) < dotted(file.glibcxx):
        yield Rejection(Reason.GLIBCXX, f"a libstdc++ with GLIBCXX_{file.glibcxx}", f"GLIBCXX_{host.glibcxx}")
    yield from _unmet_by_code(file, host)


def _rank(file: HostFile, asked: Asked) -> tuple[tuple[int, bool], bool, tuple[int, int], tuple[int, int]]:
    """A library that is linked against torch comes before one that has yet to be bound to it."""
    near = torch_abi.closeness(file.abi)
    return near, file.debug == asked.debug, _served(file, asked.host), torch_abi.floor(file.abi)


# ---- the code inside of a library: machine code of nvcc, vector instructions ----
#
# A library is opened for a whole process. So one GPU that it serves is enough, and without a visible GPU its device
# code is no reason against it.


def _unmet_by_code(file: HostFile, host: Host) -> Iterator[Rejection]:
    """What the code of a library needs and this host does not have."""
    if file.code and host.gpus and not any(_runs(file, gpu, host) for gpu in host.gpus):
        of_driver = [code.min_driver for code in file.code if any(code.runs_on(g.capability, None) for g in host.gpus)]
        if of_driver:
            yield Rejection(
                Reason.DRIVER, f"a driver for CUDA {min(of_driver)} or newer", f"a driver for CUDA {host.driver}"
            )
        else:
            found = ", ".join(f"compute capability {gpu.capability} ({gpu.name})" for gpu in host.gpus)
            yield Rejection(Reason.ARCH, f"a GPU for {', '.join(str(code.target) for code in file.code)}", found)
    for code, row in bad_code(file, host):
        if row.refuses:
            yield row.against(code)
    if host.cpu_features is not None and not host.cpu_features.issuperset(file.cpu):
        lacks = sorted(set(file.cpu) - host.cpu_features)
        yield Rejection(Reason.CPU_LEVEL, f"a processor with {', '.join(file.cpu)}", f"one without {', '.join(lacks)}")


def bad_code(file: HostFile, host: Host) -> Iterator[tuple[CompiledCode, KnownBad]]:
    """The known bad builds among the machine code that the GPUs of this host take from a library."""
    if file.compiled and host.gpus:
        from . import known_bad  # most libraries have no such code

        machine = [code.target for code in file.code if code.target.kind is TargetKind.SASS]
        fitting = [[one.capability for one in machine if one.runs_on(gpu.capability)] for gpu in host.gpus]
        taken = {max(some) for some in fitting if some}  # the driver takes the nearest
        here = [code for code in file.compiled if code.target.capability in taken]
        yield from known_bad.among(here, file.families)


def _served(file: HostFile, host: Host) -> tuple[int, int]:
    """How many GPUs a library serves, and how many of them with machine code; more is better."""
    sass = [code for code in file.code if code.target.kind is TargetKind.SASS]
    machine = sum(any(code.runs_on(gpu.capability, host.driver) for code in sass) for gpu in host.gpus)
    return sum(_runs(file, gpu, host) for gpu in host.gpus), machine


def _runs(file: HostFile, gpu: Gpu, host: Host) -> bool:
    return any(code.runs_on(gpu.capability, host.driver) for code in file.code)
