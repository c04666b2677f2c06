"""Choose a library among those of a manifest: the best one that fits the process, and a reason against each other one.

Pure: frozen values in, a value out. Our own libraries, those of other packages and what ``xray`` reads of any wheel are
all chosen here. The rules, in this order: what is damaged; what it has; this process (machine, Python, torch, CUDA, C
and C++ library); the code inside of it. A library with others that it links fits if all of them do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import library_code, torch_abi
from .host import Host, TorchInfo
from .manifest import BuildInfo, HostFile, HostKind
from .reasons import PREBUILT_CANDIDATE, Pick, Reason, Rejection, Unopened
from .value import value
from .version import dotted

LIBRARY, BINDING = "host", "torch"

# A reason, what was wanted and what was found: a rejection without its piece and its candidate.
Why = tuple[Reason, str, str]


@value(frozen=True)
class Asked:
    """What a choice depends on: the process, the manifest, and the name of what is asked for.

    ``bad`` maps the path of a file to its defect, or to the reason why it cannot be opened. ``debug`` prefers a debug
    build of the library.
    """

    host: Host
    info: BuildInfo
    family: str
    bad: Mapping[str, str | Unopened]
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
        why = (Reason.NO_PREBUILT, "a host library", "this wheel has no host library")
        return Pick(None, (Rejection(LIBRARY, PREBUILT_CANDIDATE, *why),))
    return best(asked, HostKind.LIBRARY, LIBRARY)


def best(asked: Asked, kind: HostKind, piece: str) -> Pick[HostFile]:
    """The best file of a kind that fits, and the rejections of the others."""
    rejections: list[Rejection] = []
    chosen: HostFile | None = None
    for file in asked.info.host:
        if file.kind is kind:
            why = next(_unmet(file, asked), None)
            if why is not None:
                rejections.append(Rejection(piece, file.path, *why))
            elif chosen is None or _rank(file, asked) > _rank(chosen, asked):
                chosen = file
    return Pick(chosen, tuple(rejections))


def _unmet(file: HostFile, asked: Asked) -> Iterator[Why]:
    """The requirements of a library with those that it links, or of an adapter, that this process does not meet."""
    linked = asked.info.linked(file) if file.links else ()
    for one in (file, *linked):
        defect = asked.bad.get(one.path)
        if isinstance(defect, Unopened):
            yield Reason.UNOPENED, defect.wanted, defect.found
        elif defect is not None:
            yield Reason.DAMAGED, "the library that was built", defect
    if file.kind is HostKind.LIBRARY and asked.family not in file.families:
        has = ", ".join(file.families) or "none"
        yield Reason.FAMILY, f"the family {asked.family}", f"a library with {has}"
    for one in (file, *linked):
        yield from _unmet_by_process(one, asked.host, asked.torch)


def _unmet_by_process(file: HostFile, host: Host, torch: TorchInfo) -> Iterator[Why]:
    if file.machine != host.machine:
        yield Reason.MACHINE, file.machine, host.machine
    if file.python not in ("none", "abi3", f"cp{host.python.major}{host.python.minor}"):
        yield Reason.PYTHON, file.python, f"Python {host.python}"
    unlike = torch_abi.fits(file.abi, torch.version, torch.cxx11)
    if unlike is not None:
        yield Reason.TORCH_ABI, torch_abi.wanted(file.abi), unlike
    if file.cuda_major is not None and (torch.cuda is None or torch.cuda.major != file.cuda_major):
        wanted = f"a torch with CUDA {file.cuda_major}"
        yield Reason.CUDA_RUNTIME, wanted, f"torch with CUDA {torch.cuda or 'none'}"
    if host.glibc is None or host.glibc < file.glibc:
        yield Reason.GLIBC, f"glibc {file.glibc}", "another C library" if host.glibc is None else str(host.glibc)
    if host.glibcxx is not None and dotted(host.glibcxx) < dotted(file.glibcxx):
        yield Reason.GLIBCXX, f"a libstdc++ with GLIBCXX_{file.glibcxx}", f"GLIBCXX_{host.glibcxx}"
    yield from library_code.unmet(file, host)


def _rank(file: HostFile, asked: Asked) -> tuple[tuple[int, bool], bool, tuple[int, int], tuple[int, int]]:
    """A library that is linked against torch comes before one that has yet to be bound to it."""
    near = torch_abi.closeness(file.abi)
    return near, file.debug == asked.debug, library_code.served(file, asked.host), torch_abi.floor(file.abi)
