"""The runner of `make newcomer`: what it takes from the README, what a machine is made of, and when a run fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.newcomer import __main__ as runner
from tests.newcomer import commands, machine, readme, rows
from tests.newcomer.machine import Interpreter, Machine, NotRun, StepFailed

README = (machine.CHECKOUT / "README.md").read_text(encoding="utf-8")
QUESTIONS = (machine.CHECKOUT / "docs" / "questions.md").read_text(encoding="utf-8")
HERE = Interpreter(sys.executable, sys.version_info[:2])


def test_the_readme_has_what_every_row_copies_from_it() -> None:
    compile(readme.use(README), "README.md", "exec")
    assert "import precast" in readme.use(README)
    for row in rows.ROWS:
        first, *more = readme.install(README, row.install)
        assert first.startswith(row.install) and "#" not in first
        assert bool(more) == (" wheel " in first)
    guide = (machine.CHECKOUT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    first, *_, last = readme.index(guide)
    assert first.startswith("make tools") and " tools index " in last
    assert readme.command(README, "demo") == "make demo" and readme.command(README, "test") == "make test"


def test_every_command_is_run_by_a_row_or_has_a_reason() -> None:
    run = commands.to_run(README, QUESTIONS)
    assert run[0].startswith("python3 -m venv") and run[-1].startswith(commands.LAST)
    assert {"precast doctor", "precast why rms_norm", "precast cache clear", "make help"} < set(run)
    assert commands.unknown((*commands.NOT_RUN, *commands.OTHER_ROWS), README, QUESTIONS) == []
    for command in commands.OTHER_ROWS:
        starts = {row.install for row in rows.ROWS if not row.whole}
        assert any(map(command.startswith, (*starts, "make demo", "make test"))), command


def test_a_new_command_is_run_and_one_that_is_gone_is_noticed() -> None:
    more = "Ask `precast why\nsoftmax` or `precast` or `x = 1`.\n```sh\nprecast list  # all\n```\n"
    assert commands.commands(more) == ["precast list", "precast why softmax"]
    assert commands.to_run(README, more)[-1] == "precast why softmax"
    assert commands.unknown(("make bench ARGS=norm",), README) == ["make bench ARGS=norm"]


def test_the_whole_page_is_one_shell(made: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.checkout / "docs").mkdir()
    (made.checkout / "docs" / "questions.md").write_text(QUESTIONS)
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(Machine, "run", lambda self, step, *lines: ran.append(lines))
    rows.as_it_stands(made, README)
    ((first, torch, *others, last),) = ran
    assert first == "python3 -m venv ../env && . ../env/bin/activate" and torch == 'pip install -q "torch==2.13.0"'
    assert last == "pip uninstall -y precast" and sum(line.startswith("python ") for line in others) == 2


@pytest.mark.parametrize(
    ("change", "ask"),
    [
        (("## Use", "## Usage"), readme.use),
        (("```python", "```py"), readme.use),
        (("\nCUDA_EXT=1 pip", "\nCUDA=1 pip"), lambda text: readme.install(text, rows.MACHINE)),
        (
            ("\npip install . ", "\npip install . # one\npip install . "),
            lambda text: readme.install(text, rows.SOURCES),
        ),
        (("\npip install dist/", "\nuv pip install dist/"), lambda text: readme.install(text, rows.LABEL)),
        (("make demo ", "make demonstration "), lambda text: readme.command(text, "demo")),
    ],
)
def test_a_readme_that_no_longer_says_so_fails_the_row(change, ask) -> None:
    assert change[0] in README
    with pytest.raises(readme.NotInReadme):
        ask(README.replace(*change))


def test_the_table_has_the_machines_that_strangers_have() -> None:
    names = [row.id for row in rows.ROWS]
    assert len(names) == len(set(names)) == 11
    assert sum(row.test for row in rows.ROWS) == 2
    assert {row.install for row in rows.ROWS} == {rows.MACHINE, rows.LABEL, rows.SOURCES}


def test_nothing_of_this_account_reaches_a_machine(tmp_path: Path) -> None:
    names = ("PRECAST_CACHE_DIR", "PYTHONPATH", "CXX", "PIP_CONSTRAINT", "XDG_CACHE_HOME", "MAKEFLAGS", "HOME", "PATH")
    account = {**dict.fromkeys(names, "/home/me"), "PIP_INDEX_URL": "https://index/"}
    env = machine.environment(tmp_path, HERE, tmp_path / "a b", account)
    assert env.pop("HOME") == str(tmp_path) and env.pop("PIP_INDEX_URL") == "https://index/"
    assert env.pop("PATH").split(":") == [HERE.folder, *machine.SYSTEM_PATH]
    assert env.pop("PIP_FIND_LINKS") == f"{tmp_path.as_uri()}/a%20b", "one word for pip"
    assert env == {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture
def made(tmp_path: Path) -> Machine:
    home, logs = tmp_path / "home", tmp_path / "logs"
    home.mkdir()
    logs.mkdir()
    env = machine.environment(home, HERE, tmp_path, {})
    got = Machine(tmp_path, HERE, env, logs, "2.13.0")
    got.checkout.mkdir()
    return got


def test_a_step_keeps_its_log_and_its_seconds(made: Machine) -> None:
    assert made.run("say", 'echo "$HOME"', "pwd") == f"{made.home}\n{made.checkout}\n"
    assert list(made.seconds) == ["say"] and (made.logs / "1-say.log").read_text().startswith(str(made.home))
    with pytest.raises(StepFailed, match=r"(?s)echo after: exit status 1; its whole log: .*2-fails\.log\nbefore"):
        made.run("fails", "echo before", "false", "echo after")
    assert "after" not in (made.logs / "2-fails.log").read_text() and "fails" in made.seconds


def test_an_unplugged_machine_reaches_no_index(made: Machine) -> None:
    made.unplugged = True
    (made.checkout / "try.py").write_text(
        "import urllib.request as u\n"
        "try:\n    u.urlopen('https://pypi.org/simple/', timeout=10)\nexcept OSError as e:\n    print('cut off:', e)\n"
    )
    assert made.run("reach", f'"{sys.executable}" try.py').startswith("cut off: ")


def test_another_user_is_who_runs_the_steps(made: Machine) -> None:
    made.umask, made.user = 0o077, machine.unprivileged()
    said = made.run("who", "umask; id -u", cwd=Path("/"))
    assert said == f"0077\n{made.user[0] if made.user else os.geteuid()}\n"


def test_interpreters_are_programs_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    found = machine.interpreters(sys.executable, str(tmp_path))
    assert [known.version for known in found] == [sys.version_info[:2]], "the one that does not answer is left out"
    assert not Path(found[0].path).is_relative_to(Path(sys.prefix)) or sys.prefix == sys.base_prefix


def test_a_row_takes_the_python_it_is_about() -> None:
    known = [Interpreter("/a/python3", (3, 11)), Interpreter("/b/python3", (3, 10)), Interpreter("/c/python3", (3, 13))]
    assert rows._oldest(known).path == "/b/python3" and rows._newest(known).path == "/c/python3"
    for choose, few in ((rows._oldest, known[:1]), (rows._newest, known[:2]), (rows._anybodys, known)):
        with pytest.raises(NotRun):
            choose(few)


def one(ident: str, change) -> rows.Row:
    return rows.Row(ident, f"what {ident} is", rows.SOURCES, change)


def test_a_failing_row_fails_the_run_and_the_others_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(how):
        def raises(machine: Machine) -> None:
            if how is not None:
                raise how

        return raises

    table = (
        one("fails", change(StepFailed("make demo: exit status 2\nlast words"))),
        one("is-absent", change(NotRun("no such machine"))),
        one("works", change(None)),
    )
    monkeypatch.setattr(runner, "ROWS", table)
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(runner, "fill", lambda *facts: None)
    monkeypatch.setattr(runner, "try_row", lambda row, machine: row.change(machine))
    assert runner.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " what " in line] == ["FAIL", "not", "pass"]
    assert "  last words" in lines and "1 passed, 1 failed, 1 not run" in lines[-1]
    assert (tmp_path / "results" / "results.json").is_file()
    assert runner.main(["works", "is-absent"]) == 0
    assert runner.main(["is-absent"]) == 1, "what was not run has not passed"
    with pytest.raises(SystemExit):
        runner.main(["nonsense"])
