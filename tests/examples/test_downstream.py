"""What `make examples` says of a package that does not hold, and of one that there is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples import downstream
from tests.kit.wheels import make_wheel

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "wrong"
version = "1.0"
dependencies = ["precast"]

[tool.setuptools]
py-modules = ["wrong"]
"""


def test_a_package_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        downstream.main(["image_opps"])
    assert "no package image_opps; there are image_ops, " in capsys.readouterr().err


def test_every_package_has_what_is_asked_of_one() -> None:
    for package in downstream.PACKAGES:
        folder = downstream.HERE / package.name
        assert {"pyproject.toml", "README.md", "src", "tests"} <= {path.name for path in folder.iterdir()}, package.name
    assert {path.parent.name for path in downstream.HERE.glob("*/pyproject.toml")} == {
        p.name for p in downstream.PACKAGES
    }


def test_what_a_command_said_is_kept(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(downstream.StepFailed, match=r"exit status 3\nout\nerr"):
        downstream.run([sys.executable, "-c", code], tmp_path, {})


def test_a_package_whose_tests_fail_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "sources" / "wrong"
    (project / "tests").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "wrong.py").write_text("ANSWER = 41\n")
    (project / "tests" / "test_wrong.py").write_text(
        "import wrong\n\n\ndef test_it():\n    assert wrong.ANSWER == 42\n"
    )
    monkeypatch.setattr(downstream, "HERE", project.parent)
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels", tag="py3-none-any")
    downstream.lend(tmp_path / "lent", ("pip", "setuptools", "pytest"))
    outcome = downstream.try_package(downstream.Package("wrong"), tmp_path)
    assert outcome.verdict == "FAILED" and outcome.wheel == "wrong-1.0-py3-none-any.whl"
    assert "assert 41 == 42" in outcome.said and downstream.line(outcome).startswith("FAILED  wrong-1.0")


@pytest.mark.torch
def test_a_package_that_cannot_be_built_here_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """The real words of precast, of a checkout beside a torch without headers."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    source = str(Path(downstream.HERE).parent / "pkg")
    env = {"PYTHONPATH": f"{tmp_path}:{source}", "PATH": ""}
    missing = downstream.missing_headers([sys.executable], tmp_path, env)
    assert missing is not None and f"{tmp_path / 'torch'}, without headers" in missing
    outcome = downstream.Outcome("edits", "edits", missing, 1.0, "skipped")
    assert downstream.line(outcome).startswith("skipped edits ")


def test_another_failure_is_not_taken_for_missing_headers(tmp_path: Path) -> None:
    with pytest.raises(downstream.StepFailed, match="No module named"):
        downstream.missing_headers([sys.executable, "-S", "-I"], tmp_path, {})
