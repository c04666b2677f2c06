"""What every workflow of this project keeps to. Each law yields what breaks it: the file, the job, what was found.

That they name nothing which matrix.toml does not is a guard of the audit: tools/guards/workflows.py.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

# What a workflow for other repositories runs: an installed precast, in an environment of its own.
FOR_OTHERS = "wheels.yml"
INSTALLED = '"$RUNNER_TEMP/precast/bin/python" -m '
# Python 3.10 has no reader of TOML.
INSTALL = f'{INSTALLED}pip install --no-deps "$PRECAST" tomli'
SHELL = re.compile(r"\$\(|\$\{\{|[;&|`<>\n]")  # "${{" would paste text of a stranger into a shell
WRITES = "write"
FORBIDDEN_TRIGGERS = {"pull_request_target", "workflow_run", "issue_comment"}
NO_PULL_REQUEST = "github.event_name != 'pull_request'"


@dataclass(frozen=True, slots=True)
class Known:
    """What the laws compare with: the verbs, the targets of make, and the parts that wheels of the plan take."""

    verbs: Collection[str]
    author_verbs: Collection[str]
    targets: Collection[str]
    parts: Collection[str]


@dataclass(frozen=True, slots=True)
class Workflow:
    """One file, read."""

    name: str
    text: str
    document: Mapping[str, Any]

    @property
    def triggers(self) -> Collection[str]:
        """The events that start it. YAML 1.1 reads the key ``on`` as true."""
        return self.document[True]  # type: ignore[index]

    @property
    def jobs(self) -> Mapping[str, Mapping[str, Any]]:
        return self.document["jobs"]

    def steps(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every step, with where it is."""
        for name, job in self.jobs.items():
            for step in job.get("steps", []):
                yield f"{self.name}: {name}", step


Set = Mapping[str, Workflow]
Law = Callable[[Set, Known], Iterator[str]]


def parse(texts: Mapping[str, str]) -> Set:
    """Workflows from their texts."""
    return {name: Workflow(name, text, _document(text)) for name, text in texts.items()}


@functools.cache
def _document(text: str) -> Mapping[str, Any]:
    return yaml.safe_load(text)


def pinned_actions(workflows: Set, known: Known) -> Iterator[str]:
    """An action is named by the hash of a commit, with its version beside it; a workflow of ours by its path."""
    for workflow in workflows.values():
        for line in re.findall(r"uses: (.+)", workflow.text):
            ours = re.fullmatch(r"\./\.github/workflows/([\w.-]+)", line)
            if ours is None and not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line):
                yield f"{workflow.name}: {line} is not pinned by a commit and its version"
            if ours is not None and ours[1] not in workflows:
                yield f"{workflow.name}: there is no {line}"


def verbs_only(workflows: Set, known: Known) -> Iterator[str]:
    """A step that runs something runs one verb, or one target of make: whatever it does can be done elsewhere."""
    for workflow in workflows.values():
        for where, step in workflow.steps():
            command = step.get("run")
            if command is None:
                continue
            verb = re.match(r"python3? -m tools ([\w-]+)", command)
            author = re.match(re.escape(INSTALLED) + r"precast\.build ([\w-]+)", command)
            install = command == INSTALL or re.fullmatch(
                r'(python3?|"\$PYTHON") -m venv "\$RUNNER_TEMP/precast"', command
            )
            target = re.fullmatch(r"make ([\w-]+)(?: [A-Z]+=(?:\"[^\"]*\"|\S+))*", command)
            if SHELL.search(command):
                yield f"{where}: more than one command, or an expression in it: {command!r}"
            elif not (
                (verb and verb[1] in known.verbs)
                or (target and target[1] in known.targets)
                or (workflow.name == FOR_OTHERS and (install or (author and author[1] in known.author_verbs)))
            ):
                yield f"{where}: neither a verb of tools nor a target of make: {command!r}"


def least_permissions(workflows: Set, known: Known) -> Iterator[str]:
    """Nothing is allowed but what a job asks for; who may write installs nothing, and only a release may."""
    for workflow in workflows.values():
        if workflow.document.get("permissions") != {}:
            yield f"{workflow.name}: the workflow itself must have no permissions"
        for name, job in workflow.jobs.items():
            asked = job.get("permissions")
            if not isinstance(asked, dict):
                yield f"{workflow.name}: {name} does not say which permissions it needs"
            elif WRITES in asked.values():
                if workflow.name != "release.yml":
                    yield f"{workflow.name}: {name} may write, which only a release may"
                if any("make" in step.get("run", "") for step in job.get("steps", [])):
                    yield f"{workflow.name}: {name} may write and installs packages"


def no_secrets(workflows: Set, known: Known) -> Iterator[str]:
    """No secret to steal: a release has the token of its job, and OIDC for the rest; no trigger lends them."""
    for workflow in workflows.values():
        for found in re.findall(r"secrets\b.*", workflow.text):
            yield f"{workflow.name}: a secret: {found}"
        if "github.token" in workflow.text and workflow.name != "release.yml":
            yield f"{workflow.name}: the token of the job, outside a release"
        for trigger in FORBIDDEN_TRIGGERS & set(workflow.triggers):
            yield f"{workflow.name}: {trigger} runs strangers' code with our rights"
        for where, step in workflow.steps():
            if (
                "actions/checkout" in step.get("uses", "")
                and step.get("with", {}).get("persist-credentials") is not False
            ):
                yield f"{where}: the checkout keeps its credentials"


def no_cache(workflows: Set, known: Known) -> Iterator[str]:
    """A pull request can write a cache that a release would read, so nobody reads one."""
    for workflow in workflows.values():
        for where, step in workflow.steps():
            if "/cache" in step.get("uses", "") or any("cache" in key for key in step.get("with", {})):
                yield f"{where}: a cache"
            if "run-id" in step.get("with", {}):
                yield f"{where}: an artifact of another run"


def runners(workflows: Set, known: Known) -> Iterator[str]:
    """Where a job runs comes from the plan; our own machine never runs what a pull request brings."""
    for workflow in workflows.values():
        for name, job in workflow.jobs.items():
            where, runner = f"{workflow.name}: {name}", str(job.get("runs-on", ""))
            if not runner:
                if job["uses"].endswith("_gpu.yml") and NO_PULL_REQUEST not in str(job.get("if")):
                    yield f"{where}: our own machine, without `if: {NO_PULL_REQUEST}`"
                continue
            if "self-hosted" in runner and NO_PULL_REQUEST not in str(job.get("if")):
                yield f"{where}: our own machine, without `if: {NO_PULL_REQUEST}`"
            if "self-hosted" not in runner and not re.fullmatch(
                r"ubuntu-[\w.-]+|\$\{\{ (matrix\.runner|needs\.plan\.outputs\.\w+) \}\}", runner
            ):
                yield f"{where}: runs on {runner}, which is not from the plan"
            if "container" in job and "matrix.image" not in job["container"]:
                yield f"{where}: the image {job['container']} is not from the plan"
            if "timeout-minutes" not in job:
                yield f"{where}: no timeout"


def one_at_a_time(workflows: Set, known: Known) -> Iterator[str]:
    """What starts by itself says what it may run beside; a release is never cut off."""
    for workflow in workflows.values():
        if "workflow_call" in workflow.triggers:
            continue
        concurrency = workflow.document.get("concurrency")
        if concurrency is None:
            yield f"{workflow.name}: no concurrency"
        elif workflow.name == "release.yml" and concurrency.get("cancel-in-progress") is not False:
            yield f"{workflow.name}: a release must not be cancelled half-way"


def artifacts(workflows: Set, known: Known) -> Iterator[str]:
    """An artifact is never empty, and a rerun replaces its own; each cell of a matrix has one of its own."""
    for workflow in workflows.values():
        for where, step in workflow.steps():
            if "actions/upload-artifact" not in step.get("uses", ""):
                continue
            wanted = step["with"]
            if wanted.get("if-no-files-found") != "error":
                yield f"{where}: the artifact may be empty"
            if wanted.get("overwrite") is not True:
                yield f"{where}: a rerun of the cell could not replace its artifact"
            job = workflow.jobs[where.partition(": ")[2]]
            if "strategy" in job and "matrix.name" not in wanted["name"]:
                yield f"{where}: two cells would write one artifact"


def parts_arrive(workflows: Set, known: Known) -> Iterator[str]:
    """The job of a wheel fetches every part that a wheel may take, and the sdist."""
    for where, step in workflows["_wheel.yml"].steps():
        if "actions/download-artifact" not in step.get("uses", ""):
            continue
        patterns = step["with"]["pattern"].strip("{}").split(",")
        for name in sorted({*known.parts, "sdist"}):
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                yield f"{where}: does not fetch {name}"


def whole_matrices(workflows: Set, known: Known) -> Iterator[str]:
    """A matrix is of the plan and fails cell by cell; the chain has a job for each kind of cell that is planned."""
    planned = set(workflows["_plan.yml"].triggers["workflow_call"]["outputs"])  # type: ignore[call-overload]
    for workflow in workflows.values():
        for name, job in workflow.jobs.items():
            strategy = job.get("strategy")
            if strategy and strategy.get("fail-fast") is not False:
                yield f"{workflow.name}: {name}: one failed cell would hide the others"
            if workflow.name.startswith("_") and strategy and "fromJSON(" not in str(strategy["matrix"]):
                yield f"{workflow.name}: {name}: the matrix is not from the plan"
    used = set(re.findall(r"needs\.plan\.outputs\.([\w-]+)", workflows["_cells.yml"].text)) | {"gpu"}
    for name in sorted(planned - used):
        yield f"_cells.yml: nothing runs the {name} cells of the plan"


def one_gate(workflows: Set, known: Known) -> Iterator[str]:
    """Whatever leaves a release run needs the gate, the gate needs every cell, and each says so by name."""
    release = workflows["release.yml"]
    for name, job in release.jobs.items():
        condition = str(job.get("if", ""))
        if WRITES not in (job.get("permissions") or {}).values():
            continue
        chain = _ancestors(release, name)
        if name != "draft" and "draft" not in chain:
            yield f"release.yml: {name} publishes without the gate"
        if not {"gather", "cells"} <= chain:
            yield f"release.yml: {name} publishes what was not checked"
        for needed in _needs(job):
            if f"needs.{needed}.result == 'success'" not in condition:
                yield f"release.yml: {name} does not ask whether {needed} succeeded"
    gate = str(release.jobs["draft"].get("if", ""))
    by_hand = ("!inputs.dry-run", "inputs.driver == 'cibuildwheel'", "inputs.cell == ''", "inputs.only-torch == ''")
    for asked in ("github.ref_type == 'tag'", *by_hand):
        if asked not in gate:
            yield f"release.yml: the gate does not ask {asked}"


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


def _ancestors(workflow: Workflow, name: str) -> set[str]:
    found: set[str] = set()
    todo = _needs(workflow.jobs[name])
    while todo:
        job = todo.pop()
        if job not in found:
            found.add(job)
            todo += _needs(workflow.jobs[job])
    return found


LAWS: tuple[Law, ...] = (
    pinned_actions,
    verbs_only,
    least_permissions,
    no_secrets,
    no_cache,
    runners,
    one_at_a_time,
    artifacts,
    parts_arrive,
    whole_matrices,
    one_gate,
)


def violations(workflows: Set, known: Known) -> list[str]:
    """Everything that breaks a law."""
    return [found for law in LAWS for found in law(workflows, known)]
