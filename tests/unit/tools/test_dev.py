"""The developer's build: which families it takes, what it tells an editor, and how it says no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precast._builder import aot, catalogue
from precast.errors import BuildFailed
from tools.verbs import dev


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(
        aot, "build_for_here", lambda families, settings, cache: names.extend(family.name for family in families)
    )
    return names


def test_a_family_brings_its_backward() -> None:
    assert [family.name for family in dev.chosen(["rms_norm"])] == ["rms_norm", "rms_norm_backward"]
    assert [family.name for family in dev.chosen(["cpu_adam"])] == ["cpu_adam"]
    assert dev.chosen([]) == catalogue.FAMILIES


@pytest.mark.compiler
def test_an_editor_is_told_every_compile(built: list[str], tmp_path: Path) -> None:
    commands = tmp_path / "compile_commands.json"
    assert dev.main(["rms_norm", "--commands", str(commands)]) == 0
    assert built == ["rms_norm", "rms_norm_backward"]
    files = {Path(entry["file"]) for entry in json.loads(commands.read_text())}
    assert all(path.is_file() for path in files)
    assert {path.parent.name for path in files} >= {"host", "norm", "softmax"}
    written = commands.stat().st_mtime_ns
    assert dev.main(["--commands", str(commands)]) == 0
    assert commands.stat().st_mtime_ns == written, "an editor is not told of what has not changed"


def test_an_unknown_family_is_refused(built: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["rmsnorm"]) == 2
    assert "no kernel family 'rmsnorm'; there are: activations, " in capsys.readouterr().err
    assert not built


@pytest.mark.compiler
def test_a_compiler_that_refuses_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise BuildFailed("rms_norm: the compiler failed")

    monkeypatch.setattr(aot, "build_for_here", fail)
    assert dev.main(["--commands", str(tmp_path / "commands.json")]) == 1
    assert "rms_norm: the compiler failed" in capsys.readouterr().err
