"""A folder of finished files: what is reused, what is made again, and what is refused by name."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from precast._builder import matrix
from precast.errors import KernelError
from tools.shared import wheelhouse
from tools.shared.cells import expand
from tools.verbs import check_set, sdist

CELLS = {"wheel-cu130-x86_64": "p-1+cu130-py3-none-any.whl", "wheel-cpu-x86_64": "p-1+cpu-py3-none-any.whl"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished wheels."""
    out = tmp_path / "out"
    for cell, name in CELLS.items():
        (tmp_path / name).write_bytes(cell.encode())
        wheelhouse.put(out, cell, "key", tmp_path / name, 1.0)
    return out


def found(folder: Path, *, complete: bool = True) -> list[str]:
    return list(wheelhouse.problems(folder, CELLS, complete=complete))


def test_what_was_put_is_found_again(folder: Path) -> None:
    assert found(folder) == []
    record = wheelhouse.finished(folder, "wheel-cpu-x86_64", "key")
    assert record is not None and (record.file, record.bytes) == ("p-1+cpu-py3-none-any.whl", 16)
    assert wheelhouse.read(folder)["wheel-cpu-x86_64"] == record
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_other_inputs_or_another_file_are_made_again(folder: Path) -> None:
    assert wheelhouse.finished(folder, "wheel-cpu-x86_64", "other key") is None
    assert wheelhouse.finished(folder, "wheel-cu121-x86_64", "key") is None
    (folder / CELLS["wheel-cpu-x86_64"]).write_bytes(b"other")
    assert wheelhouse.finished(folder, "wheel-cpu-x86_64", "key") is None
    (folder / CELLS["wheel-cpu-x86_64"]).unlink()
    assert wheelhouse.finished(folder, "wheel-cpu-x86_64", "key") is None


def test_a_new_version_takes_the_place_of_the_old(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p-2+cpu-py3-none-any.whl").write_bytes(b"2")
    wheelhouse.put(folder, "wheel-cpu-x86_64", "key 2", tmp_path / "p-2+cpu-py3-none-any.whl", 1.0)
    assert sorted(path.name for path in folder.glob("*.whl")) == [
        "p-1+cu130-py3-none-any.whl",
        "p-2+cpu-py3-none-any.whl",
    ]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda f: (f / CELLS["wheel-cpu-x86_64"]).write_bytes(b"x"), "p-1+cpu-py3-none-any.whl: sha256 "),
        (lambda f: (f / "notes.txt").write_text(""), "notes.txt: no cell of the plan makes that"),
        (lambda f: (f / "wheel-cpu-x86_64.json").unlink(), "p-1+cpu-py3-none-any.whl: there, without the record"),
        (
            lambda f: (f / "wheel-cpu-x86_64.json").rename(f / "wheel-cpu-riscv64.json"),
            "names the cell 'wheel-cpu-x86_64'",
        ),
        (lambda f: (f / "wheel-cpu-x86_64.json").write_text("{}"), "not a record of a finished wheel"),
        (lambda f: leave(f, "../elsewhere.whl"), "not its own"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_strangers_and_changed_files_are_named(
    folder: Path, damage: Callable[[Path], object], line: str, complete: bool
) -> None:
    damage(folder)
    try:
        lines = found(folder, complete=complete)
    except KernelError as error:
        lines = [str(error)]
    assert any(line in text for text in lines), lines


def leave(folder: Path, file: str) -> None:
    path = folder / "wheel-cpu-x86_64.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "file": file}))


def test_only_a_complete_set_misses_what_is_not_there(folder: Path) -> None:
    (folder / CELLS["wheel-cpu-x86_64"]).unlink()
    assert found(folder) == ["p-1+cpu-py3-none-any.whl: missing, though wheel-cpu-x86_64.json is there"]
    (folder / "wheel-cpu-x86_64.json").unlink()
    assert found(folder) == ["p-1+cpu-py3-none-any.whl: missing"]
    assert found(folder, complete=False) == []


def test_an_interruption_leaves_no_half_written_wheel(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever moment it comes at: before each write and each rename of one replacement."""
    new = tmp_path / CELLS["wheel-cpu-x86_64"]
    for moment in range(1, 5):
        new.write_bytes(b"new %d" % moment)
        steps = iter([None] * (moment - 1))

        def stop(*arguments: Any, act: Callable[..., object], steps: Iterator[None] = steps) -> object:
            if next(steps, KeyboardInterrupt) is KeyboardInterrupt:
                raise KeyboardInterrupt
            return act(*arguments)

        monkeypatch.setattr(wheelhouse, "_write", functools.partial(stop, act=wheelhouse._write))
        monkeypatch.setattr(Path, "replace", functools.partialmethod(stop, act=Path.replace))
        with pytest.raises(KeyboardInterrupt):
            wheelhouse.put(folder, "wheel-cpu-x86_64", f"key {moment}", new, 1.0)
        monkeypatch.undo()
        assert found(folder, complete=False) == [], moment
        assert wheelhouse.finished(folder, "wheel-cpu-x86_64", f"key {moment}") is None
        wheelhouse.put(folder, "wheel-cpu-x86_64", f"key {moment}", new, 1.0)
        assert found(folder) == []


def test_the_set_of_a_plan_is_checked(checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = matrix.load(checkout / "matrix.toml")
    plan = expand(known, known.event("pr"))
    wanted = check_set.expected(plan, known)
    built = {cell.name for cell in plan.wheel if not cell.not_built}
    assert set(wanted) == {*built, wheelhouse.SDIST_CELL} and wanted[wheelhouse.SDIST_CELL] == sdist.NAME
    assert wanted["wheel-cu121-x86_64"].endswith("+cu121-py3-none-manylinux_2_28_x86_64.whl")
    out = tmp_path / "out"
    for cell, name in wanted.items():
        (tmp_path / name).write_bytes(cell.encode())
        wheelhouse.put(out, cell, "key", tmp_path / name, 1.0)
    arguments = [str(out), "--event", "pr"]
    assert check_set.main(arguments) == 0
    assert f"{len(wanted)} of {len(wanted)} files, 0 problems" in capsys.readouterr().out
    (out / wanted["wheel-cu121-x86_64"]).unlink()
    assert check_set.main(arguments) == 1
    assert wanted["wheel-cu121-x86_64"] in capsys.readouterr().err
    (out / "wheel-cu121-x86_64.json").unlink()
    assert check_set.main([*arguments, "--cell", "wheel-cpu-x86_64"]) == 0
    assert check_set.main([*arguments, "--cell", "wheel-cu121-x86_64"]) == 1


def test_a_record_says_what_it_is_of(folder: Path) -> None:
    record = wheelhouse.read(folder)["wheel-cpu-x86_64"]
    assert json.loads((folder / "wheel-cpu-x86_64.json").read_text()) == dataclasses.asdict(record)
