"""``python -m tests.newcomer [ROW ...]``: be a stranger on each kind of machine; 1 if any row fails.

What is tried is the last commit, in a folder of its own, from an empty HOME and an empty build cache. Wheels are
downloaded once, into one folder that every row installs from.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.newcomer.machine import (
    CHECKOUT,
    Interpreter,
    Machine,
    NotRun,
    StepFailed,
    environment,
    interpreters,
)
from tests.newcomer.rows import ROWS, Row, try_row

RESULTS = CHECKOUT / "build" / "newcomer"


def pinned(name: str) -> str:
    """The version of a package in constraints.txt."""
    text = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8")
    match = re.search(rf"^{re.escape(name)}==([^\s;]+)", text, re.MULTILINE)
    assert match is not None, f"constraints.txt pins no {name}"
    return match[1]


def fill(wheels: Path, interpreter: Interpreter, torch: str, scratch: Path, log: Path) -> None:
    """Download what an environment of this Python with this torch is made of, by the pip of whoever runs this."""
    venv = scratch / f"fill-{interpreter.version[1]}"
    python = str(venv / "bin" / "python")
    if not venv.exists():
        subprocess.run([interpreter.path, "-m", "venv", str(venv)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-qq", f"pip=={pinned('pip')}"], check=True)
    constraints = scratch / "constraints.txt"
    with constraints.open("w") as file:
        command = [sys.executable, "-m", "tools", "constraints", "--torch", torch]
        subprocess.run(command, cwd=CHECKOUT, stdout=file, check=True)
    command = [python, "-m", "pip", "download", "-q", "-d", str(wheels), "-c", str(constraints)]
    with log.open("ab") as output:
        done = subprocess.run(
            [*command, "--only-binary", ":all:", "--group", "dev", f"torch=={torch}"],
            cwd=CHECKOUT,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        raise NotRun(f"pip finds no torch {torch} for {interpreter}, or not all that goes with it; see {log}")


def try_one(row: Row, known: Sequence[Interpreter], work: Path, wheels: Path, test: bool) -> dict[str, object]:
    """One row of the table, as JSON."""
    logs = RESULTS / row.id
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    folder = work / row.folder / row.id
    result, seen, seconds, where = "pass", "", {}, ""
    started = time.monotonic()
    try:
        interpreter = row.python(known) if row.python is not None else known[0]
        where = str(interpreter)
        torch = row.torch or pinned("torch")
        fill(wheels, interpreter, torch, work, logs / "0-download.log")
        started = time.monotonic()
        home = folder / "home"
        home.mkdir(parents=True)
        for place in (work / row.folder, folder):
            place.chmod(0o755)
        machine = Machine(folder, interpreter, environment(home, interpreter, wheels, os.environ), logs, torch)
        seconds = machine.seconds
        try_row(row if test else without_tests(row), machine)
    except NotRun as why:
        result, seen = "not run", str(why)
    except StepFailed as failure:
        result, seen = "FAIL", str(failure)
    except Exception as error:  # noqa: BLE001  # whatever went wrong, the row failed, and the others are to be tried
        result, seen = "FAIL", f"{type(error).__name__}: {error}"
    total = time.monotonic() - started
    if folder.exists():
        (folder / "home").chmod(0o755)
        shutil.rmtree(folder)
    steps = {name: round(took, 1) for name, took in seconds.items()}
    facts = {"id": row.id, "environment": row.what, "python": where, "result": result, "seen": seen}
    return facts | {"steps": steps, "seconds": round(total, 1)}


def without_tests(row: Row) -> Row:
    """The row without ``make test``."""
    from dataclasses import replace

    return replace(row, test=False)


def show(facts: Mapping[str, object]) -> str:
    """One line: environment, commands with their seconds, result. A failure has the end of its log below."""
    steps = facts["steps"]
    assert isinstance(steps, dict)
    taken = ", ".join(f"{name} {took:.0f}" for name, took in steps.items())
    where = ", ".join(filter(None, (str(facts["environment"]), str(facts["python"]))))
    line = f"{facts['result']:<8} {facts['seconds']:>7} s  {facts['id']:<16} {where}: {taken or 'nothing'}"
    return line if not facts["seen"] else f"{line}\n  {str(facts['seen']).replace(chr(10), chr(10) + '  ')}"


def verdict(table: Sequence[Mapping[str, object]]) -> int:
    """1 if a row failed, or if none was run."""
    results = [facts["result"] for facts in table]
    return 1 if "FAIL" in results or "pass" not in results else 0


def main(arguments: Sequence[str]) -> int:
    """Try all rows, or those named."""
    rows = {row.id: row for row in ROWS}
    parser = argparse.ArgumentParser(prog="python -m tests.newcomer", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ROW", help=f"of {', '.join(rows)}; all by default")
    parser.add_argument("--no-test", action="store_true", help="leave `make test` out")
    parser.add_argument("--wheels", type=Path, help="the folder of wheels, kept (else a temporary one)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.ids if name not in rows]
    if unknown:
        parser.error(f"no row is called {', '.join(unknown)}")
    known = interpreters(os.environ.get("PYTHONS", ""), os.environ["PATH"])
    table: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="precast-newcomer-") as name:
        work = Path(name)
        work.chmod(0o755)  # one row is another user
        wheels = (options.wheels or work / "wheels").absolute()
        wheels.mkdir(parents=True, exist_ok=True)
        for row in [rows[name] for name in options.ids] or ROWS:
            facts = try_one(row, known, work, wheels, not options.no_test)
            table.append(facts)
            print(show(facts), flush=True)
    (RESULTS / "results.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    counts = {word: sum(facts["result"] == word for facts in table) for word in ("pass", "FAIL", "not run")}
    print(f"\n{counts['pass']} passed, {counts['FAIL']} failed, {counts['not run']} not run; logs in {RESULTS}")
    return verdict(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
