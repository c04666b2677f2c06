"""How act is run: what it is given, and that nothing it does not understand passes for success."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._builder import matrix, provenance
from tests.workflows import act

WORKFLOW = """\
on: workflow_dispatch
jobs:
  first:
    runs-on: ubuntu-24.04
    steps:
      - run: "true"
  second:
    needs: first
    strategy:
      matrix: ${{ fromJSON(vars.CELLS) }}
    runs-on: ubuntu-24.04
    steps:
      - run: test ${{ matrix.n }} = 1
"""


def repository(work: Path, workflow: str) -> Path:
    folder = work / "repository" / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "some.yml").write_text(workflow)
    act.commit(work / "repository")
    return work


def test_a_copy_is_a_clean_checkout_without_containers(tmp_path: Path) -> None:
    copy = act.copy_of(act.ROOT, tmp_path / "copy", r"\.github/|matrix\.toml")
    act.only_torch(copy / "matrix.toml", "2.13")
    act.commit(copy)
    facts = provenance.of(copy)
    assert facts.commit and not facts.dirty
    assert any((copy / ".git" / "refs" / "heads").iterdir()), "act copies no empty folder, and git needs this one"
    texts = [path.read_text(encoding="utf-8") for path in (copy / ".github" / "workflows").iterdir()]
    assert texts and not any("container:" in text for text in texts)
    known = matrix.load(copy / "matrix.toml")
    assert [str(torch.release) for torch in known.releases] == ["2.13"] and not known.classic_built
    assert len({python for pythons in known.releases[0].pythons.values() for python in pythons}) == 1
    with pytest.raises(ValueError, match=r"needed 2\.99 among its torches, found 0"):
        act.only_torch(act.copy_of(act.ROOT, tmp_path / "other", r"matrix\.toml") / "matrix.toml", "2.99")


def test_every_action_needs_a_stand_in(tmp_path: Path) -> None:
    folder = act.ROOT / ".github" / "workflows"
    assert {line.partition("=")[2].partition("@")[0] for line in act.stand_ins(folder)} >= {"actions/upload-artifact"}
    text = "jobs:\n  a:\n    steps:\n      - uses: some/thing@" + "0" * 40 + " # v1.0.0\n"
    (tmp_path / "some.yml").write_text(text)
    with pytest.raises(FileNotFoundError, match=r"some/thing@0+ has no stand-in: write .+stubs/thing/action\.yml"):
        list(act.stand_ins(tmp_path))


@pytest.mark.act
def test_what_act_does_not_understand_is_a_failure(tmp_path: Path) -> None:
    work = repository(tmp_path, WORKFLOW)
    good = act.run("some.yml", work, variables={"CELLS": '{"n": [1]}'})
    assert good.status == 0 and good.results("second") == ["success"], good.log
    failed = act.run("some.yml", work, variables={"CELLS": '{"n": [1, 2]}'})
    assert failed.status != 0 and "failure" in failed.results("second")
    # act reports a matrix that it cannot read, runs the job once without one, and ends with status 0.
    lenient = WORKFLOW.replace("vars.CELLS", "needs.first.outputs.n").replace("test ${{ matrix.n }} = 1", '"true"')
    unclear = act.run("some.yml", repository(tmp_path / "unclear", lenient))
    assert set(unclear.results("")) == {"success"}
    assert unclear.status != 0 and "Error while evaluating matrix" in unclear.log
