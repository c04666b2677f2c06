"""The guard of the workflows refuses whatever matrix.toml does not name, and says where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._builder import matrix
from tools.guards import judge_checkout
from tools.guards.subject import Verdict
from tools.guards.workflows import check_workflows
from tools.verbs import audit

ROOT = Path(__file__).resolve().parents[4]
MATRIX = matrix.load(ROOT / "matrix.toml")
IMAGE = MATRIX.machine_specs[0].image

STRANGERS = {
    "a runner": ("    runs-on: ubuntu-18.04", "runner", "ubuntu-18.04"),
    "a runner in a list": ("        runner: [ubuntu-24.04, windows-2022]", "runner", "windows-2022"),
    "an image": (
        "    container: quay.io/pypa/manylinux2014_x86_64:latest",
        "image",
        "quay.io/pypa/manylinux2014_x86_64",
    ),
    "an image by another digest": (f"    container: {IMAGE[:-1]}0", "image", IMAGE[:-1]),
    "an image of no registry": ("    container: debian:12", "image", "debian:12"),
    "an image in a command": ("      - run: podman run ghcr.io/me/cuda:12 make", "image", "ghcr.io/me/cuda:12"),
    "a label": ("      - run: python -m tools build --label cu125", "label", "cu125"),
    "a label in a version": ("      - run: pip install precast==1.0+cu117", "label", "cu117"),
    "a target": ("      TARGETS: sm_80 sm_61", "target", "sm_61"),
    "a policy": ("      CIBW_MANYLINUX_X86_64_IMAGE: manylinux_2_34", "policy", "manylinux_2_34"),
    "a Python": ('          python-version: ["3.10", "3.7"]', "python", "3.7"),
    "a Python by its tag": ("      CIBW_BUILD: cp38-manylinux_x86_64", "python", "38"),
    "a torch": ("      - run: pip install torch==2.3.1", "torch", "2.3.1"),
    "a torch ABI": ("      - run: python -m tools host --abi torch-2.3-cxx1", "torch", "2.3"),
    "a CUDA": ("      name: CUDA 12.5", "cuda", "12.5"),
    "a package": (
        "      - run: pip install nvidia-cuda-nvrtc-cu12==12.5.82",
        "package",
        "nvidia-cuda-nvrtc-cu12==12.5.82",
    ),
}
NAMED = f"""
on: push
jobs:
  all:
    runs-on: ${{{{ matrix.runner }}}}
    container: {IMAGE}
    strategy:
      matrix:
        runner: [ubuntu-24.04, ubuntu-24.04-arm]
        python-version: ["3.10", "3.15"]  # not 3.7
    steps:
      - uses: actions/checkout@8e8c483db84b4bee98b60c0593521ed34d9990e8 # v6.0.1, as ubuntu-18.04 had
      - run: |
          pip install torch==2.13.0 nvidia-cuda-nvrtc==13.0.88
          python3 -m tools build --label cu118 --arch aarch64 # cu117 is gone
          python3.12 -m tools host
"""


def found(folder: Path, text: str) -> list[tuple[str, str, str]]:
    (folder / "x.yml").write_text(text)
    return [(v.reason, v.candidate, v.found) for v in check_workflows(folder, MATRIX)]


@pytest.mark.parametrize("what", STRANGERS)
def test_a_stranger_is_refused_with_its_line(tmp_path: Path, what: str) -> None:
    line, kind, name = STRANGERS[what]
    text = (
        f"on: push\njobs:\n  one:\n{line}\n" if not line.startswith("      -") else f"jobs:\n  steps:\n    x:\n{line}\n"
    )
    assert any((k, w) == (kind, "x.yml:4") and name in f for k, w, f in found(tmp_path, text)), found(tmp_path, text)


def test_what_the_matrix_names_passes(tmp_path: Path) -> None:
    assert found(tmp_path, NAMED) == []


def test_a_line_of_a_script_is_named(tmp_path: Path) -> None:
    text = NAMED.replace("cu118", "cu117")
    (line,) = (number for number, words in enumerate(text.splitlines(), 1) if "--label cu117" in words)
    assert found(tmp_path, text) == [("label", f"x.yml:{line}", "cu117")]


def test_what_is_no_yaml_is_refused(tmp_path: Path) -> None:
    ((kind, where, _),) = found(tmp_path, "jobs: [")
    assert (kind, where) == ("yaml", "x.yml")


def test_the_workflows_of_this_checkout_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert audit.main([]) == 0
    assert "passed" in capsys.readouterr().out


def test_a_matrix_without_a_runner_refuses_this_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "matrix.toml").read_text().replace('runner = "ubuntu-24.04"', 'runner = "ubuntu-26.04"')
    (tmp_path / "matrix.toml").write_text(text)
    assert audit.main(["--matrix", str(tmp_path / "matrix.toml")]) == 1
    said = capsys.readouterr().out
    assert "ci.yml:" in said
    # fails if the last line of a log is not the guard that refused
    assert said.splitlines()[-1].startswith("this checkout: refused by the guard 'workflows': ")


def test_an_sdist_has_no_workflows_to_ask(tmp_path: Path) -> None:
    result = judge_checkout(tmp_path, MATRIX)
    assert result.verdict is Verdict.NOT_ASKED and "no workflows here" in result.note
