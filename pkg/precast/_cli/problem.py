"""Find the problems of this machine in the doctor's facts, each once and with its fix. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precast._cli import output, status
from precast.core.reasons import Reason
from precast.errors import block

Json = dict[str, Any]

_AGAIN = "install this precast again, from where it came"  # the fix if no command is known


@dataclass(frozen=True, slots=True)
class Problem:
    """``lines`` holds the problem, then found, needed and fix; ``others`` are more kernels with the same problem."""

    lines: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The problem in one line."""
        more = f"; same for {output.count(len(self.others), 'more kernel')}" if self.others else ""
        return f"{self.lines[0]}{more}"


def find(facts: Json) -> tuple[Problem, ...]:
    """The problems, causes first: damaged files, then kernels that cannot be loaded, then wrong numbers."""
    return (*_damaged(facts), *_refused(facts), *_wrong(facts))


def _damaged(facts: Json) -> Iterator[Problem]:
    """Corrupted installed files, even if a build replaces them: the installation is broken."""
    if facts["build"]["manifest_error"] is not None:
        yield Problem(tuple(facts["build"]["manifest_error"].splitlines()))
    found: dict[str, Json] = {}
    for kernel in facts["kernels"]:
        for rejection in kernel["rejections"] if kernel["expected"] else ():
            if rejection["reason"] == Reason.DAMAGED.value:
                found.setdefault(rejection["candidate"], rejection)
    folder = facts["build"]["manifest"].rpartition("/")[0]
    paths = facts["build"]["device_paths"]
    for name, rejection in found.items():
        what = "missing" if rejection["found"] == "missing" else "corrupted"
        text = block(
            f"{name} is {what}, so it is not used\n  file    {folder}/{paths.get(name, name)}",
            found=rejection["found"],
            needed=rejection["needed"],
            fix=rejection["fix"] or _AGAIN,
        )
        yield Problem(tuple(text.splitlines()))


def _refused(facts: Json) -> Iterator[Problem]:
    """Kernels that this machine should have but cannot load; kernels with the same reason are one problem."""
    alike: dict[tuple[object, ...], list[Json]] = {}
    for kernel in facts["kernels"]:
        damage = kernel["error"] is not None and kernel["error"] == facts["build"]["manifest_error"]
        if kernel["expected"] and kernel["verdict"] not in status.LOADABLE and not damage:
            alike.setdefault(_reason(kernel), []).append(kernel)
    for kernels in alike.values():
        yield Problem(
            tuple(kernels[0]["problem"].splitlines()),
            tuple(f"{kernel['family']} for {kernel['device']}" for kernel in kernels[1:]),
        )


def _reason(kernel: Json) -> tuple[object, ...]:
    """A key that two refusals share if one fix resolves both."""
    if kernel["rejections"]:
        return tuple(sorted({(item["reason"], item["found"]) for item in kernel["rejections"]}))
    return (kernel["error"].replace(kernel["family"], ""),)


def _wrong(facts: Json) -> Iterator[Problem]:
    for check in facts["deep"] or ():
        if not check["ok"]:
            text = block(
                f"{check['op']} on {check['device']} does not compute what plain torch computes",
                found=check["wrong"],
                needed="the result of plain torch in float64",
                fix="report this, with the output of: precast report",
            )
            yield Problem(tuple(text.splitlines()))
