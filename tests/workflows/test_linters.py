"""The workflows as others judge them: GitHub's schema, actionlint and zizmor; and each of these is shown refusing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
COMMANDS = {
    "schema": ["check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
    "actionlint": ["actionlint", "-shellcheck=", "-pyflakes=", "-no-color"],
    "zizmor": [
        "zizmor",
        "--offline",
        "--no-progress",
        "--color=never",
        "--config",
        str(ROOT / ".github" / "zizmor.yml"),
    ],
}


def lint(linter: str, files: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run a linter that lies beside this Python, on its own files alone."""
    program, *options = COMMANDS[linter]
    found = shutil.which(program, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert found is not None, f"no {program}: make test installs it"
    return subprocess.run(
        [found, *options, *map(str, files)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("linter", COMMANDS)
def test_the_workflows_pass(linter: str) -> None:
    done = lint(linter, [*sorted(WORKFLOWS.glob("*.yml")), ROOT / "examples" / "wheels.yml"])
    assert done.returncode == 0, done.stdout + done.stderr


BROKEN = [
    ("schema", "strategy:", "strategyy:", "strategyy"),
    ("schema", "timeout-minutes: 60", "timeout-minutes: soon", "'soon' is not of type 'number'"),
    ("actionlint", "    needs: cells\n", "    needs: cell\n", 'needs job "cell" which does not exist'),
    ("actionlint", "needs.cells.outputs.gpu", "needs.cells.outputs.gpus", '"gpus" is not defined'),
    (
        "actionlint",
        "      event: ${{ inputs.event ||",
        "      events: ${{ inputs.event ||",
        'input "events" is not defined',
    ),
    ("zizmor", "@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0 # v7.0.0", "@v7", "unpinned-uses"),
    ("zizmor", "          persist-credentials: false\n", "          fetch-depth: 1\n", "artipacked"),
    ("zizmor", "run: make lint", "run: echo ${{ github.event.pull_request.title }}", "template-injection"),
    ("zizmor", "  pull_request:\n", "  pull_request_target:\n", "dangerous-triggers"),
]


@pytest.mark.parametrize(("linter", "old", "new", "said"), BROKEN)
def test_a_broken_workflow_is_refused(linter: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    shutil.copytree(WORKFLOWS, folder)
    text = (folder / "ci.yml").read_text(encoding="utf-8")
    assert old in text
    (folder / "ci.yml").write_text(text.replace(old, new), encoding="utf-8")
    (tmp_path / ".git").mkdir()  # where a project begins, for actionlint
    done = lint(linter, [folder / "ci.yml"])
    assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr


# The other files below .github: program, options, file.
OTHERS = [
    ("check-jsonschema", "vendor.dependabot", "dependabot.yml"),
    ("check-jsonschema", "vendor.github-issue-forms", "ISSUE_TEMPLATE/bug.yml"),
    ("check-jsonschema", "vendor.github-issue-forms", "ISSUE_TEMPLATE/feature.yml"),
    ("check-jsonschema", "vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ("zizmor", "", "dependabot.yml"),
]


def other(program: str, schema: str, path: Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which(program, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    options = ["--builtin-schema", schema] if schema else COMMANDS["zizmor"][1:]
    return subprocess.run([found or program, *options, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("program", "schema", "name"), OTHERS, ids=lambda value: value.rpartition("/")[2])
def test_the_forms_and_the_updates_pass(program: str, schema: str, name: str) -> None:
    done = other(program, schema, ROOT / ".github" / name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_form_is_refused(tmp_path: Path) -> None:
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    assert "precast report" in text
    broken = tmp_path / "bug.yml"
    broken.write_text(text.replace("type: textarea", "type: text", 1), encoding="utf-8")
    assert other("check-jsonschema", "vendor.github-issue-forms", broken).returncode == 1
