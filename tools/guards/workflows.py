"""The guard of the workflows: they name no version, runner, image or label that matrix.toml does not have.

Workflows read their work from the plan. If one names a version or the like itself, it must not go stale when the
matrix changes. Comments are not read, because they hold the versions of pinned actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from precast._builder.matrix import Matrix
from precast.core.reasons import Rejection

_RUNNER = re.compile(r"\b(?:ubuntu|debian|windows|macos)-[\w.-]*\w")
_IMAGE = re.compile(
    r"(?:\b(?:container|image): |(?=\b(?:quay\.io|ghcr\.io|docker\.io|nvcr\.io|mcr\.microsoft\.com)/))([^\s$]\S*)"
)
_LABEL = re.compile(r"(?<![\w.])\+?(cu\d{2,3})\b")
_TARGET = re.compile(r"\b((?:sm|compute)_\d+[af]?)\b")
_POLICY = re.compile(r"\b(manylinux[_\d]+(?:_(?:x86_64|aarch64|i686))?)\b")
_PYTHON = re.compile(r"(?:\bpython(?:-version)?(?:: *|==?|@)?['\"]?|\bcp)(\d\.?\d+)")
_TORCH = re.compile(r"\btorch(?:[ =<>~!:v]+|-(?:stable-)?)(\d+\.\d+(?:\.\d+)?)")
_PACKAGE = re.compile(r"\b(nvidia-cuda-[\w-]+(?:==[\d.]+)?)")
_CUDA = re.compile(r"\bcuda[-_ :=v]*(\d+[._]\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of name: its pattern, and the names that matrix.toml has."""

    kind: str
    pattern: re.Pattern[str]
    known: frozenset[str]
    row: str


def check_workflows(folder: Path, known: Matrix) -> Iterator[Rejection]:
    """Check every string of every workflow against every rule."""
    rules = tuple(rules_of(known))
    for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        try:
            root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            yield Rejection("yaml", "a workflow", " ".join(str(error).split()), path.name)
            continue
        for key, line, text in texts(root):
            for rule in rules:
                for name in rule.pattern.findall(f"{key}: {text}"):
                    if name not in rule.known:
                        yield Rejection(rule.kind, f"one of {rule.row}", name, f"{path.name}:{line}")


def rules_of(known: Matrix) -> Iterator[Rule]:
    """The kinds of names that belong to the matrix."""
    labels = {spec.label.text for spec in known.labels} | {*known.without_label} | {"cpu"}
    runners = frozenset(known.runners.values())
    yield Rule("runner", _RUNNER, runners, "machines.*.runner")
    images = frozenset(machine.image for machine in known.machine_specs)
    yield Rule("image", _IMAGE, images, "machines.*.image")
    yield Rule("label", _LABEL, frozenset(labels), "labels")
    targets = frozenset(str(target) for spec in known.labels for target in spec.targets)
    yield Rule("target", _TARGET, targets, "labels.*.sass and ptx")
    tags = frozenset({known.policy, *(f"{known.policy}_{machine}" for machine in known.machines)})
    yield Rule("policy", _POLICY, tags, "wheel.policy")
    pythons = {str(python) for python in known.pythons}
    pythons |= {python.replace(".", "") for python in pythons}
    yield Rule("python", _PYTHON, frozenset(pythons), "python.versions")
    torches = {release.version for release in known.releases} | {str(release.release) for release in known.releases}
    torches |= {known.torch_floor, str(known.stable_floor), known.headers}
    yield Rule("torch", _TORCH, frozenset(torches), "torch.releases")
    cuda = {str(spec.label.cuda) for spec in known.labels if spec.label.cuda is not None}
    yield Rule("cuda", _CUDA, frozenset(cuda | {version.replace(".", "_") for version in cuda}), "labels")
    packages = frozenset(spec.requirement for spec in known.labels if spec.requirement is not None)
    yield Rule("package", _PACKAGE, packages, "labels.*.package and nvrtc")


def texts(node: yaml.Node | None, key: str = "") -> Iterator[tuple[str, int, str]]:
    """Every scalar of a document, with its key and line; an item of a list has the list's key."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from texts(value, name.value if isinstance(name, yaml.ScalarNode) else "")
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from texts(item, key)
    elif isinstance(node, yaml.ScalarNode):
        first = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
        lines = [line.partition(" #")[0] for line in node.value.split("\n")]
        yield from ((key, first + number, line) for number, line in enumerate(lines) if line.strip())
