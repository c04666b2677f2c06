"""The graph of jobs, run by act: what follows what, and that a failure anywhere keeps a release inside its run.

The jobs, conditions, matrices and artifacts are the real ones; the verbs are stood in for by ``doubles/``, and the
matrix has fewer labels. ``make act`` runs one wheel with nothing stood in for but GitHub's own actions.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.workflows import act

TAG = {"ref": "refs/tags/v0.1.0"}
# What the plan is made by; each job gets a copy of it all.
NEEDED = r"\.github/|tools/|csrc/|pkg/precast/(\w+\.py|_abi/|_builder/)|matrix\.toml"
pytestmark = pytest.mark.act


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout that knows two torches, and whose releases have two labels."""
    work = tmp_path_factory.mktemp("act")
    repository = act.copy_of(act.ROOT, work / "repository", NEEDED)
    path = repository / "matrix.toml"
    act.only_torch(path, "2.13", "2.15")
    few = '[events.release]\nlabels = ["cu121", "cpu"]\ntests = "torch"'
    text, count = re.subn(r'\[events\.release\]\ntests = "torch, label"', few, path.read_text(encoding="utf-8"))
    assert count == 1
    path.write_text(text, encoding="utf-8")
    act.commit(repository)
    return work


def verbs(ran: act.Ran) -> list[str]:
    return [
        " ".join(call.split()[:2]) if call.startswith(("publish", "make")) else call.split()[0] for call in ran.calls
    ]


def test_a_tag_is_released_in_the_order_that_can_be_taken_back(work: Path) -> None:
    ran = act.run("release.yml", work, event="push", payload=TAG, doubles={})
    assert ran.status == 0, ran.log
    assert set(ran.results("")) == {"success"}
    spoke = [line.split("]")[0] for line in ran.log.splitlines() if line.startswith("[") and "/" in line.split("]")[0]]
    turns = [name for name, _ in itertools.groupby(spoke)]
    assert len(turns) == len(set(turns)), f"act ran jobs side by side: {turns}"
    assert len(ran.results("device-")) == 1 and len(ran.results("wheel-cu121")) == len(ran.results("wheel-cpu")) > 0
    order = list(dict.fromkeys(verbs(ran)))
    chain = ["plan", "device", "build", "smoke", "check-set", "audit", "publish stage", "index", "publish draft"]
    chain += ["publish open"]
    assert [verb for verb in order if verb in chain] == chain
    assert verbs(ran)[-1] == "smoke", "the public index is tried last"
    wheels = sorted(line for line in ran.published if line.startswith("attest"))
    assert len(wheels) == len(ran.results("wheel-")) + 1, "every wheel, and the sdist"
    rest = [line.split()[0] for line in ran.published if not line.startswith("attest")]
    assert rest == ["upload-pages-artifact", "gh-action-pypi-publish", "deploy-pages"]


@pytest.mark.parametrize(
    "verb", ["build --label cpu", "smoke .* --torch 2.13", "check-set", "audit --publish", "make test ARGS=-m gpu"]
)
def test_a_failure_anywhere_keeps_the_release_inside_its_run(work: Path, verb: str) -> None:
    ran = act.run(
        "release.yml", work, event="push", payload=TAG, doubles={"ACT_FAIL": verb}, variables={"GPU_RUNNER": "yes"}
    )
    assert ran.status != 0 and "failure" in ran.results("")
    assert "build --label cu121" in "\n".join(ran.calls), "the other cells run on"
    assert "publish draft" not in verbs(ran) and "publish open" not in verbs(ran)
    assert [line for line in ran.published if not line.startswith("upload-pages")] == []


def test_what_fails_on_the_way_out_is_not_followed(work: Path) -> None:
    ran = act.run("release.yml", work, event="push", payload=TAG, doubles={"ACT_FAIL": "publish draft"})
    assert ran.status != 0 and ran.results("release/draft") == ["failure"]
    assert {line.split()[0] for line in ran.published} == {"upload-pages-artifact"}


def test_a_run_by_hand_stops_before_anything_leaves_it(work: Path) -> None:
    inputs = {"dry-run": True, "cell": "wheel-cu121-x86_64"}
    ran = act.run("release.yml", work, payload={"inputs": inputs}, doubles={})
    assert ran.status == 0, ran.log
    assert ran.results("wheel-cu121-x86_64") == ["success"] and not ran.results("wheel-cpu")
    assert "check-set" in verbs(ran) and "publish draft" not in verbs(ran)
    assert [line for line in ran.published if not line.startswith("upload-pages")] == []


def test_a_pull_request_never_meets_our_own_machine(work: Path) -> None:
    ran = act.run("ci.yml", work, event="pull_request", doubles={}, variables={"GPU_RUNNER": "yes"})
    assert ran.status == 0, ran.log
    assert ran.results("wheel-") and not ran.results("gpu")
    assert not any("-m gpu" in call for call in ran.calls)
    pushed = act.run(
        "ci.yml", work, event="push", doubles={"ACT_FAIL": "(device|host) "}, variables={"GPU_RUNNER": "yes"}
    )
    assert pushed.status != 0 and not pushed.results("wheel-"), "no wheel without its parts"
