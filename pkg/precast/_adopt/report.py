"""The report of ``adopt`` as data: replaced modules with proofs, others with reasons, and how outputs compare."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Group:
    """Modules of one class with the same result. ``note`` is the proof, or the reason for leaving them alone.

    ``sources`` are the functions that were read beside the forward, with their fingerprints.
    """

    kind: str
    cls: str
    fingerprint: str
    modules: tuple[str, ...]
    note: str
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The largest difference of one output between the untouched and the adopted model, and the model's own noise.

    The noise is the largest difference that the untouched model shows if its batch is turned round or its dtype is
    wider, or each replaced module errs as much as its proof allows; and at least the resolution of the dtype at the
    largest element. Two results that are each within the noise
    of the exact one may be two noises apart, so an output may differ by that, and the worst of all gradients by four.
    """

    output: str
    difference: float
    noise: float
    noises: int = 2

    @property
    def holds(self) -> bool:
        """Whether the difference is within so many noises; NaN is not."""
        return self.difference <= self.noises * self.noise


@dataclass(frozen=True)
class Report:
    """What :func:`precast.adopt` did. ``print(report)`` shows it on one screen; ``report.json()`` is for keeping.

    ``undone`` says why everything was put back, or is empty. ``lost`` names what calls of the model changed and
    could not be put back.
    """

    model: str
    replaced: tuple[Group, ...]
    left: tuple[Group, ...]
    compared: tuple[Comparison, ...]
    not_compared: tuple[str, ...]
    undone: str
    dry_run: bool
    versions: tuple[tuple[str, str], ...]
    device: str
    seconds: float
    lost: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are comparisons and all hold, or nothing was there to replace."""
        evidence = self.compared or not self.replaced
        return bool(evidence) and not self.undone and all(one.holds for one in self.compared)

    @property
    def why_not(self) -> str:
        """Why it is not ``ok``, or nothing."""
        if self.ok:
            return ""
        return self.undone or ("a comparison fails" if self.compared else "nothing was compared")

    @property
    def verdict(self) -> str:
        """What became of the model, in a few words."""
        if self.undone:
            return "left as it was" if not self.lost else "undone, but a call changed it"
        if not self.replaced:
            return "nothing to adopt"
        adopted = "would be adopted" if self.dry_run else "adopted"
        return adopted if self.compared else f"{adopted} by its proofs, NOT COMPARED"

    def json(self) -> str:
        """The report as JSON with sorted keys. Later versions of the package only add keys."""
        facts = dataclasses.asdict(self) | {"schema": SCHEMA, "ok": self.ok}
        for key in ("difference", "noise"):  # JSON has no NaN
            facts["compared"] = [c | {key: c[key] if math.isfinite(c[key]) else None} for c in facts["compared"]]
        return json.dumps(facts | {"versions": dict(self.versions)}, indent=1, sort_keys=True)

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.device}: {self.verdict}"]
        if self.undone:
            lines.append(f"  undone: {self.undone}")
        lines += _groups("replaced", self.replaced) + _groups("left alone", self.left)
        if self.compared:
            lines.append("compared with the untouched model: largest difference, own noise")
            width = max(len(one.output) for one in self.compared)
            lines += [
                f"  {one.output:{width}}  {one.difference:.2g}  {one.noise:.2g}  {'holds' if one.holds else 'FAILS'}"
                for one in self.compared
            ]
        lines += [f"not compared: {reason}" for reason in self.not_compared]
        lines.append(", ".join(f"{name} {version}" for name, version in self.versions) + f"; {self.seconds:.1f} s")
        return "\n".join(lines)


def parse(text: str) -> Report:
    """The report that :meth:`Report.json` wrote.

    Raises:
        ValueError: the text is not such a report.
    """
    try:
        facts: Mapping[str, Any] = json.loads(text)
        groups = {key: tuple(_group(group) for group in facts[key]) for key in ("replaced", "left")}
        compared: list[Any] = [{k: math.nan if v is None else v for k, v in one.items()} for one in facts["compared"]]
        return Report(
            model=str(facts["model"]),
            **groups,
            compared=tuple(Comparison(**one) for one in compared),
            not_compared=tuple(facts["not_compared"]),
            undone=str(facts["undone"]),
            dry_run=bool(facts["dry_run"]),
            versions=tuple(sorted(facts["versions"].items())),
            device=str(facts["device"]),
            seconds=float(facts["seconds"]),
            lost=tuple(facts.get("lost", ())),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a report of precast.adopt: {type(error).__name__}: {error}") from error


def _group(facts: Mapping[str, Any]) -> Group:
    sources = tuple((str(name), str(digest)) for name, digest in facts.get("sources", ()))
    return Group(**{**facts, "modules": tuple(facts["modules"]), "sources": sources})


def _groups(title: str, groups: tuple[Group, ...]) -> list[str]:
    if not groups:
        return [f"{title}: nothing"]
    count = sum(len(group.modules) for group in groups)
    lines = [f"{title}: {count} module{'s' if count > 1 else ''}"]
    for group in groups:
        lines.append(f"  {len(group.modules)} x {group.cls.rpartition('.')[2]}: {group.note}")
    return lines
