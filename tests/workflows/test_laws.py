"""The workflows keep our laws; and each law is shown refusing, by one change to the real files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from precast._builder import matrix
from precast.build import __main__ as build_main
from tests.workflows import laws
from tools.__main__ import VERBS
from tools.shared.cells import expand

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TARGETS = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
assert TARGETS is not None
MATRIX = matrix.load(ROOT / "matrix.toml")
PLAN = expand(MATRIX, MATRIX.event("release"))
KNOWN = laws.Known(
    VERBS, build_main.VERBS, TARGETS[1].split(), {name for cell in PLAN.wheel for name in (*cell.device, *cell.host)}
)
UPLOAD = "actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1"


def test_the_workflows_keep_every_law() -> None:
    assert set(TEXTS) >= {"ci.yml", "nightly.yml", "release.yml"}
    assert laws.violations(laws.parse(TEXTS), KNOWN) == []


# The file, what is changed in it (at every place), into what, and what is said about it.
BROKEN = [
    ("_device.yml", UPLOAD, "actions/upload-artifact@v7", "not pinned by a commit"),
    ("_device.yml", UPLOAD, UPLOAD.partition(" ")[0], "not pinned by a commit"),
    ("ci.yml", "_cells.yml", "_gone.yml", "there is no ./.github/workflows/_gone.yml"),
    ("ci.yml", "run: make lint", "run: ruff check .", "neither a verb of tools nor a target of make"),
    ("ci.yml", "run: make lint", "run: make lent", "neither a verb of tools nor a target of make"),
    ("_device.yml", "tools device", "tools devise", "neither a verb of tools nor a target of make"),
    ("wheels.yml", "precast.build guard", "precast.build gard", "neither a verb of tools nor a target of make"),
    ("wheels.yml", '--no-deps "$PRECAST"', '"$PRECAST" "$TORCH"', "neither a verb of tools nor a target of make"),
    ("ci.yml", "run: make lint", f"run: '{laws.INSTALL}'", "neither a verb of tools nor a target of make"),
    ("_device.yml", "--out build/parts", "--out build/parts && ls", "more than one command"),
    ("_device.yml", '"$LABEL"', "${{ matrix.label }}", "an expression in it"),
    ("ci.yml", "permissions: {}", "permissions: write-all", "must have no permissions"),
    ("ci.yml", "30\n    permissions:\n      contents: read\n", "30\n", "lint does not"),
    ("_wheel.yml", "contents: read", "contents: write", "cell may write, which only a release may"),
    ("release.yml", "publish open", "publish open\n      - run: make tools", "open may write and installs packages"),
    ("ci.yml", "run: make lint", "run: make lint\n        env: { T: '${{ secrets.T }}' }", "a secret: secrets.T"),
    ("ci.yml", "driver: ${{ inputs.driver || 'cibuildwheel' }}", "driver: x\n    secrets: inherit", "secrets: inherit"),
    ("ci.yml", "run: make lint", "run: make lint\n        env: { T: '${{ github.token }}' }", "the token of the job"),
    ("ci.yml", "  pull_request:\n", "  pull_request_target:\n", "runs strangers' code"),
    ("_host.yml", "persist-credentials: false", "fetch-depth: 0", "keeps its credentials"),
    ("_test.yml", "allow-prereleases: true", "cache: pip", "cell: a cache"),
    ("_wheel.yml", "path: build/parts\n", "path: build/parts\n          run-id: 1\n", "an artifact of another run"),
    ("_gpu.yml", "github.event_name != 'pull_request' && ", "", "our own machine, without"),
    ("nightly.yml", "if: ${{ github.event_name != 'pull_request' }}", "if: true", "our own machine, without"),
    ("_device.yml", "${{ matrix.runner }}", "${{ inputs.runner }}", "which is not from the plan"),
    ("_host.yml", "${{ inputs.contained && matrix.image || '' }}", "alpine", "the image alpine is not from the plan"),
    ("_plan.yml", "    timeout-minutes: 10\n", "", "plan: no timeout"),
    ("nightly.yml", "concurrency:", "x-concurrency:", "nightly.yml: no concurrency"),
    ("release.yml", "cancel-in-progress: false", "cancel-in-progress: true", "must not be cancelled half-way"),
    ("_device.yml", "if-no-files-found: error", "if-no-files-found: warn", "the artifact may be empty"),
    ("_host.yml", "overwrite: true", "overwrite: false", "could not replace its artifact"),
    ("_wheel.yml", "name: ${{ matrix.name }}\n     ", "name: wheels\n     ", "two cells would write one"),
    ("_wheel.yml", "adapter-*,", "", "does not fetch adapter-torch-2.9-cxx1-aarch64"),
    ("_host.yml", "fail-fast: false", "fail-fast: true", "one failed cell would hide the others"),
    ("_host.yml", "matrix: ${{ fromJSON(inputs.cells) }}", "matrix: { runner: [ubuntu-24.04] }", "not from the plan"),
    ("_cells.yml", "needs.plan.outputs.test-aarch64", "needs.plan.outputs.host", "nothing runs the test-aarch64"),
    ("release.yml", "needs: draft", "needs: gather", "pypi publishes without the gate"),
    ("release.yml", "needs: [cells, gather]", "needs: cells", "draft publishes what was not checked"),
    ("release.yml", "needs.pypi.result == 'success'", "true", "pages does not ask whether pypi succeeded"),
    ("release.yml", "!inputs.dry-run", "true", "the gate does not ask !inputs.dry-run"),
    ("release.yml", "inputs.driver == 'cibuildwheel'", "true", "the gate does not ask inputs.driver =="),
    ("release.yml", "github.ref_type == 'tag'", "true", "the gate does not ask github.ref_type == 'tag'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "said"), BROKEN)
def test_a_broken_law_is_reported(name: str, old: str, new: str, said: str) -> None:
    assert old in TEXTS[name]
    found = laws.violations(laws.parse(TEXTS | {name: TEXTS[name].replace(old, new)}), KNOWN)
    assert any(said in line and line.startswith(name) for line in found), found


def test_every_law_is_shown_refusing() -> None:
    shown = set()
    for name, old, new, said in BROKEN:
        workflows = laws.parse(TEXTS | {name: TEXTS[name].replace(old, new)})
        shown |= {law for law in laws.LAWS if any(said in line for line in law(workflows, KNOWN))}
    assert shown == set(laws.LAWS)
