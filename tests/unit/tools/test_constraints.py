"""Our pins beside the constraints of a user's pip: theirs win, and only where the two exclude each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from precast.errors import KernelError
from tests.kit import spawn
from tools.verbs import constraints

OURS = """\
# why
torch==2.13.0
numpy==2.2.6; python_version < '3.11'
triton==3.7.1; platform_machine == 'x86_64'
ninja==1.13.2
"""


def merged(theirs: str, torch: str = "") -> tuple[str, tuple[str, ...]]:
    return constraints.merged(OURS, tuple(constraints.parse(theirs, "site.txt")), torch)


@pytest.mark.parametrize("theirs", ["", "torch<=2.14.1", "torch==2.13.0", "torch>2", "unknown==1", "# torch==1"])
def test_what_allows_our_pins_changes_nothing(theirs: str) -> None:
    assert merged(theirs) == (OURS, ())


@pytest.mark.parametrize(
    "theirs", ["torch==2.11.0", "torch<2.12", "Torch == 2.11.0  # ours", "torch==2.13.0+cu130", "torch @ file:///t.whl"]
)
def test_another_torch_takes_the_place_of_ours_and_of_its_triton(theirs: str) -> None:
    text, (said,) = merged(theirs)
    assert "torch" not in text.replace("pytorch", "") and "triton" not in text and "ninja==1.13.2" in text
    assert said.endswith("instead of torch==2.13.0: site.txt")


def test_one_package_gives_way_and_the_others_stay() -> None:
    text, (said,) = merged("numpy==1.26.4\n-c other.txt\n--hash=sha256:x\nninja>=1 \\\n  --hash=sha256:y\n")
    assert "numpy" not in text and "torch==2.13.0" in text and "ninja==1.13.2" in text
    assert said == "numpy==1.26.4 instead of numpy==2.2.6: site.txt"


def test_a_constraint_for_another_python_is_none() -> None:
    assert merged("torch==2.11.0; python_version < '3'") == (OURS, ())


def test_a_torch_that_was_asked_for_replaces_the_pin_or_is_refused() -> None:
    text, said = merged("torch<=2.14.1", torch="2.11.0")
    assert "torch==2.11.0\n" in text and "triton" not in text and said == ()
    with pytest.raises(KernelError, match=r"^TORCH=2\.15\.0 contradicts a constraint of this machine's pip\n"):
        merged("torch<=2.14.1", torch="2.15.0")


def test_every_place_where_pip_looks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(f"{name}==1\n")
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nconstraint =\n  {tmp_path / 'one'}\n  file://{tmp_path / 'two'}\n")
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    before = {line.name for line in constraints.of_this_machine()}  # the machine's own
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_CONSTRAINT", f"{tmp_path / 'three'} https://nowhere.invalid/c.txt")
    assert {line.name for line in constraints.of_this_machine()} - before == {"one", "two", "three"}


def test_the_command_prints_what_pip_takes_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text("torch==2.11.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "c.txt"))
    assert constraints.main([]) == 0
    text, said = capsys.readouterr()
    assert "\ntorch==" not in text and "\nninja==" in text
    assert "asks for torch==2.11.0 instead of torch==" in said and "PIP_CONSTRAINT= make" in said
    monkeypatch.setenv("PIP_CONSTRAINT", "")  # the way out that it names
    assert constraints.main([]) == 0
    text, said = capsys.readouterr()
    assert "\ntorch==" in text and said == ""
    assert constraints.main(["--torch", "2.11.0"]) == 0
    assert "\ntorch==2.11.0\n" in capsys.readouterr().out


def test_a_bare_python_prints_them() -> None:
    """Make asks for them before anything is installed: without precast, torch and packages."""
    root = Path(__file__).resolve().parents[3]
    environment = {**spawn.environ(), "PIP_CONSTRAINT": "", "PIP_CONFIG_FILE": "/dev/null"}
    done = spawn.run(sys.executable, "-S", "-m", "tools", "constraints", "--torch", "", cwd=root, env=environment)
    assert "torch==" in done.stdout
