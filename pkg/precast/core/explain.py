"""Format decisions as text: pure functions shared by the loader's errors, the doctor and the log.

A text has these parts: what failed; one line per piece and reason; the environment in one line; at most three
alternative fixes, the most likely first; and where to read more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from .errors import KernelError
from .host import Gpu, Host
from .reasons import BRIEF, EVERYTHING, JIT_CANDIDATE, NO_TORCH, Reason, Rejection

MOST_ACTIONS = 3
Error = TypeVar("Error", bound=KernelError)


def explain(
    kind: type[Error],
    what: str,
    rejections: Iterable[Rejection],
    environment: str,
    actions: Sequence[str] = (),
    *,
    more: str = "",
    about: str = "",
) -> Error:
    """The error for these rejections, about the family or op of that name; ``more`` is a command that shows more."""
    lines = [what, *(f"  {line}" for line in rejection_lines(rejections))]
    fix = actions[:MOST_ACTIONS] or ["none: no command removes these reasons"]
    return kind("\n".join(lines), env=environment, fix=fix, more=more, about=about)


def headline(what: str, rejections: Iterable[Rejection], about: str) -> str:
    """What failed, with short reasons if they fit in one line, which begins with the name that it is about."""
    rejections = tuple(rejections)
    of_all = [r for r in rejections if r.candidate == EVERYTHING]
    build = [r for r in rejections if r.candidate == JIT_CANDIDATE]
    files = [r for r in rejections if r.candidate not in (EVERYTHING, JIT_CANDIDATE)]
    chosen = of_all or [*_most_telling(files), *build[:1]]
    facts = "; ".join(dict.fromkeys(filter(None, map(_brief, chosen))))
    whole = f"{what} ({facts})"
    return whole if facts and len(f"{about} {whole}") <= _HEADLINE else what


def _brief(rejection: Rejection) -> str:
    if rejection.reason is Reason.DRIVER and rejection.candidate == EVERYTHING:
        return "no NVIDIA driver"
    if rejection.reason is Reason.TORCH_MISSING and rejection.found == NO_TORCH:
        return "torch is not installed"
    return BRIEF[Reason(rejection.reason)]


# 100 characters less the longest name of an exception.
_HEADLINE = 100 - len("KernelIncompatible: ")


def rejection_lines(rejections: Iterable[Rejection]) -> tuple[str, ...]:
    """One aligned line per piece, reason and finding; candidates that fail for the same reason share a line."""
    cells = [(group[0].piece, _candidates(group), _verdict(group)) for group in _grouped(rejections)]
    piece_width = max((len(piece) for piece, _, _ in cells), default=0)
    candidate_width = max((len(candidate) for _, candidate, _ in cells), default=0)
    return tuple(
        f"{piece:{piece_width}}  {candidate:{candidate_width}}  rejected {verdict}"
        for piece, candidate, verdict in cells
    )


def top_reason(rejections: Iterable[Rejection], piece: str | None = None) -> str:
    """One clause for a log line: the rejection that best explains why a piece was not simply used.

    Files for other GPUs or other torch versions are common, so any other reason comes first.
    """
    of_piece = [rejection for rejection in rejections if piece is None or rejection.piece == piece]
    if not of_piece:
        return ""
    (first,) = _most_telling(of_piece)
    alike = [r for r in of_piece if (r.reason, r.found) == (first.reason, first.found)]
    return _sentence(alike)


def _most_telling(rejections: Sequence[Rejection]) -> Sequence[Rejection]:
    """The first rejection with an unusual reason, otherwise the first one; empty if there are none."""
    usual = (Reason.ARCH, Reason.FAMILY, Reason.TORCH_ABI, Reason.MACHINE, Reason.PYTHON)
    return [r for r in rejections if r.reason not in usual][:1] or rejections[:1]


def environment(host: Host, judge: str) -> str:
    """The facts for a bug report, in one line; ``judge`` is what looked at them, such as ``precast 1.0+cu130``."""
    torch = "no torch"
    if host.torch is not None:
        info = host.torch
        backend = f"ROCm {info.hip}" if info.hip else f"CUDA {info.cuda}" if info.cuda else "no CUDA"
        torch = f"torch {info.version} ({backend}, cxx11 ABI {int(info.cxx11)})"
    elif host.torch_error:
        torch = "a torch that fails to import"
    driver = f"driver for CUDA {host.driver}" if host.driver else "no NVIDIA driver"
    libc = f"glibc {host.glibc}" if host.glibc else "no glibc"
    parts = (
        *filter(None, [judge]),
        torch,
        driver,
        *(gpu_text(gpu) for gpu in host.gpus),
        f"Python {host.python}",
        f"{host.system} {host.machine}",
        libc,
    )
    return ", ".join(parts)


def gpu_text(gpu: Gpu) -> str:
    """``GPU 0 is 9.0 (NVIDIA H200)``."""
    return f"GPU {gpu.index} is {gpu.capability} ({gpu.name})"


def _grouped(rejections: Iterable[Rejection]) -> list[list[Rejection]]:
    groups: dict[tuple[str, str, str], list[Rejection]] = {}
    for rejection in rejections:
        groups.setdefault((rejection.piece, rejection.reason, rejection.found), []).append(rejection)
    return list(groups.values())


def _candidates(group: Sequence[Rejection]) -> str:
    """The candidate; for several, their number and the parts of their names that differ: ``2 files (sm_75, sm_80)``."""
    names = list(dict.fromkeys(rejection.candidate for rejection in group))
    if len(names) == 1:
        return names[0]
    return f"{len(names)} files ({', '.join(_short(name) for name in names)})"


def _short(path: str) -> str:
    """``device/rms_norm.sm_90.cubin`` -> ``sm_90``; for other paths the file name."""
    name = path.rpartition("/")[2]
    parts = name.split(".")
    return parts[1] if path.startswith("device/") and len(parts) == 3 else name.removesuffix(".so")


def _wanted(group: Sequence[Rejection]) -> str:
    wanted = list(dict.fromkeys(rejection.needed for rejection in group))
    prefix = "compute capability "
    if len(wanted) > 1 and all(text.startswith(prefix) for text in wanted):
        wanted = [wanted[0], *(text.removeprefix(prefix) for text in wanted[1:])]
    return ", ".join(wanted)


def _verdict(group: Sequence[Rejection]) -> str:
    first = group[0]
    if first.reason in _PLAIN:
        return f"({first.reason}): {first.found}"
    return f"({first.reason}): needs {_wanted(group)}; found {first.found}"


def _sentence(group: Sequence[Rejection]) -> str:
    first = group[0]
    if first.reason is Reason.DAMAGED:
        return f"{_candidates(group)} is corrupted ({first.found})"
    if first.reason in _PLAIN:
        return first.found
    return f"{_candidates(group)} needs {_wanted(group)}; found {first.found}"


# For these the finding is enough; the need for an intact file is obvious.
_PLAIN = {Reason.NO_PREBUILT, Reason.DAMAGED}
