"""The table: one row for each kind of machine that strangers have, and what is done on all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.newcomer import commands, readme
from tests.newcomer.machine import OLDEST, SYSTEM_PATH, Interpreter, Machine, NotRun, reachable, unprivileged

OTHER_TORCH = "2.11.0"
SITE_TORCH = "torch<=2.14.1"
USER_PIP = "23.2"
MACHINE, LABEL, SOURCES = "CUDA_EXT=1 ", "PRECAST_LABEL=", "pip install ."


@dataclass(frozen=True)
class Row:
    """One machine. ``change`` makes it what ``what`` says; ``install`` is how the README's line starts."""

    id: str
    what: str
    install: str
    change: Callable[[Machine], None]
    folder: str = "stranger"
    python: Callable[[Sequence[Interpreter]], Interpreter] | None = None
    torch: str = ""  # another than the one that constraints.txt pins
    test: bool = False
    index: bool = False  # from the wheel of the README to an index
    whole: bool = False  # nothing but the commands of the README and of the questions, as they stand


def _nothing(machine: Machine) -> None:
    """The machine as it is."""


def _site_constraint(machine: Machine) -> None:
    constraint, config = machine.folder / "site-constraints.txt", machine.folder / "pip.conf"
    constraint.write_text(f"{SITE_TORCH}\n")
    config.write_text(f"[global]\nconstraint = {constraint}\n")
    machine.env["PIP_CONFIG_FILE"] = str(config)


def _pip_constraint(machine: Machine) -> None:
    constraint = machine.folder / "image-constraints.txt"
    constraint.write_text(f"torch=={OTHER_TORCH}\n")
    machine.env["PIP_CONSTRAINT"] = str(constraint)


def _offline(machine: Machine) -> None:
    machine.offline = True


def _unprivileged(machine: Machine) -> None:
    machine.umask, machine.user = 0o077, unprivileged()


def _no_git(machine: Machine) -> None:
    """Every program of the system but git, in a folder of links."""
    machine.archive = True
    programs = machine.folder / "programs"
    programs.mkdir()
    for folder in SYSTEM_PATH:
        for program in sorted(Path(folder).glob("*")):
            link = programs / program.name
            if not program.name.startswith("git") and not link.is_symlink():
                link.symlink_to(program)
    machine.env["PATH"] = f"{machine.interpreter.folder}:{programs}"
    if Path(machine.interpreter.folder, "git").exists():
        machine.env["PATH"] = str(programs)
    if shutil.which("git", path=machine.env["PATH"]):
        raise NotRun("git lies beside this Python")


def _read_only_home(machine: Machine) -> None:
    machine.user = unprivileged()
    machine.home.chmod(0o555)


def _old_pip(machine: Machine) -> None:
    machine.archive = True


def _oldest(known: Sequence[Interpreter]) -> Interpreter:
    return _of(known, OLDEST)


def _of(known: Sequence[Interpreter], version: tuple[int, int]) -> Interpreter:
    for interpreter in known:
        if interpreter.version == version:
            return interpreter
    raise NotRun(f"no Python {version[0]}.{version[1]} on PATH or in PYTHONS")


def _newest(known: Sequence[Interpreter]) -> Interpreter:
    first, newest = known[0], max(known, key=lambda interpreter: interpreter.version)
    if newest.version == first.version:
        raise NotRun(f"no newer Python on PATH or in PYTHONS than the {first} of the other rows")
    return newest


def _anybodys(known: Sequence[Interpreter]) -> Interpreter:
    """One that a user without privileges can run, which an interpreter in somebody's home is not."""
    for interpreter in known:
        if reachable(interpreter.path, unprivileged()):
            return interpreter
    system = "/usr/bin/python3"
    raise NotRun(f"no Python on PATH or in PYTHONS that others can run, and {system} is not one")


ROWS = (
    Row("as-it-stands", "every command of README.md and docs/questions.md", LABEL, _nothing, whole=True),
    Row("site-constraint", f"pip.conf: {SITE_TORCH}", MACHINE, _site_constraint, test=True),
    Row("pip-constraint", f"PIP_CONSTRAINT: torch=={OTHER_TORCH}", SOURCES, _pip_constraint, torch=OTHER_TORCH),
    Row("offline", "no network once the environments are made", MACHINE, _offline),
    Row("unprivileged", "no privileges, umask 077", SOURCES, _unprivileged, python=_anybodys, test=True),
    Row("odd-folder", "a folder with a space and an umlaut", MACHINE, _nothing, folder="ein Fräulein"),
    Row("no-git", "an unpacked archive, no git", MACHINE, _no_git),
    Row("read-only-home", "HOME cannot be written", SOURCES, _read_only_home, python=_anybodys),
    Row("old-pip", f"pip {USER_PIP}, an unpacked archive", LABEL, _old_pip, index=True),
    Row("oldest-python", f"Python {OLDEST[0]}.{OLDEST[1]}", SOURCES, _nothing, python=_oldest),
    Row("newest-python", "the newest Python here", SOURCES, _nothing, python=_newest),
)


def try_row(row: Row, machine: Machine) -> None:
    """Everything a stranger does, in this order: sources, environments, install, use, demo, and perhaps the tests."""
    row.change(machine)
    machine.fetch_sources()
    text = (machine.checkout / "README.md").read_text(encoding="utf-8")
    if row.whole:
        as_it_stands(machine, text)
        return
    user = machine.folder / "user"
    pip = [f'pip install -q "pip=={USER_PIP}"'] if row.id == "old-pip" else []
    machine.run("python", f'python3 -m venv "{user}"')
    path = (user / "bin",)
    machine.run("torch", *pip, f'pip install -q "torch=={machine.torch}"', path=path)
    machine.run("install", *readme.install(text, row.install), path=path)
    if row.index:
        guide = (machine.checkout / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
        machine.run("index", *readme.index(guide))
    if machine.offline:
        machine.run("env", "make env")
        machine.unplugged = True
    program = machine.folder / "use.py"
    program.write_text(readme.use(text), encoding="utf-8")
    program.chmod(0o644)
    machine.run("use", f'python "{program}"', cwd=machine.folder, path=path)
    machine.run("demo", readme.command(text, "demo"))
    if row.test:
        machine.run("test", readme.command(text, "test"))


def as_it_stands(machine: Machine, text: str) -> None:
    """One shell, the README from its first command on. Only torch is named, to be that of the folder of wheels."""
    questions = (machine.checkout / "docs" / "questions.md").read_text(encoding="utf-8")
    first, *others, last = commands.to_run(text, questions)
    programs = []
    for number, program in enumerate((readme.use(text), *readme.blocks(questions, "python"))):
        path = machine.folder / f"program-{number}.py"
        path.write_text(program, encoding="utf-8")
        programs.append(f'python "{path}"')
    machine.run("all", first, f'pip install -q "torch=={machine.torch}"', *others, *programs, last)
