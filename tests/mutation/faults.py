"""``python -m tests.mutation.faults [NAME ...]`` puts each fault into a copy of the tree and runs the tests it names.

The faults are data, in the TOML files of `fault_lists`. A fault is one piece of text in one file and what replaces it.
The checkout is only read: the copy imports its own package and builds its own libraries, into a cache of its own. A
build is addressed by its content, so a fault compiles only what it touches. Long tests do not run, as in ``make test``.

A fault is one of:

- ``killed``: a named test fails with the fault;
- ``survived``: the named tests pass with the fault;
- ``broken``: pytest finds none of the tests, or the fault does not compile;
- ``stale``: the text is not in its file exactly once.

All named tests run once without any fault before that, and must pass. The exit status is 0 if all faults are killed,
else 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).resolve().parent / "fault_lists"
LIMIT_S = 600.0

_COMPILE_ERROR = re.compile(r"^.*\.(?:cpp|cuh?|h)[:(]\d+.*\berror\b.*$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PASSED, _TESTS_FAILED, _INTERRUPTED = 0, 1, 2  # exit statuses of pytest


@dataclass(frozen=True)
class Fault:
    """One change of one file, and the tests that must notice it."""

    name: str
    what: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of one fault, and the line that says why."""

    word: str
    why: str
    seconds: float = 0.0


def read(folder: Path = LISTS) -> dict[str, Fault]:
    """Every fault of the TOML files in a folder, by name. The file's name is the first part of the fault's."""
    faults = {}
    for path in sorted(folder.glob("*.toml")):
        for key, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            tests = tuple(entry.pop("tests"))
            fault = Fault(f"{path.stem}.{key}", tests=tests, **entry)
            faults[fault.name] = fault
    return faults


def stale(fault: Fault, tree: Path) -> str | None:
    """Why a fault cannot be put into a tree; None if it can."""
    path = tree / fault.file
    if not path.is_file():
        return f"there is no {fault.file}"
    count = path.read_text(encoding="utf-8").count(fault.find)
    return None if count == 1 else f"its text is in {fault.file} {count} times, not once"


@contextmanager
def applied(fault: Fault, tree: Path) -> Iterator[None]:
    """Keeps the fault in a tree for the length of the block."""
    path = tree / fault.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(fault.find, fault.replace), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def copy_tree(to: Path) -> Path:
    """Copies what git tracks or would track, as it is in the checkout now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # a deleted file stays in the index until the next commit
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def run_tests(tree: Path, tests: Iterable[str], cache: Path, limit_s: float) -> tuple[int | None, str]:
    """The exit status of pytest and its output. The status is None after the time limit."""
    options = ["-x", "-q", "-n", "0", "-m", "not long", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTEST_"))}
    # Two versions of a file can have the same size and second, and bytecode is compared by these.
    own = {"PYTHONPATH": str(tree / "pkg"), "PYTHONDONTWRITEBYTECODE": "1", "PRECAST_CACHE_DIR": str(cache)}
    child = subprocess.Popen(
        command,
        cwd=tree,
        env={**kept, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0]
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    return child.returncode, output


def judge(status: int | None, output: str) -> Verdict:
    """Reads the verdict from the exit status of pytest (None: the time limit) and its output."""
    compile_error = _COMPILE_ERROR.search(output)
    if compile_error is not None:
        return Verdict("broken", f"it does not compile: {compile_error[0]}")
    if status is None:
        return Verdict("killed", "the tests did not end in time")
    if status == _PASSED:
        return Verdict("survived", "all named tests pass")
    failed = _FAILED.search(output)
    if status in (_TESTS_FAILED, _INTERRUPTED) and failed is not None:
        return Verdict("killed", failed[1])
    if status < 0:  # a fault in C++ can end the process
        return Verdict("killed", f"the tests ended with signal {-status}")
    return Verdict("broken", f"pytest ended with status {status}: {output.strip()[-300:]}")


def try_one(fault: Fault, tree: Path, cache: Path, *, limit_s: float = LIMIT_S) -> Verdict:
    """Runs the fault's tests in a copy of the tree that has the fault."""
    started = time.monotonic()
    why = stale(fault, tree)
    if why is not None:
        return Verdict("stale", why)
    with applied(fault, tree):
        status, output = run_tests(tree, fault.tests, cache, limit_s)
    found = judge(status, output)
    return Verdict(found.word, found.why, time.monotonic() - started)


def failing(faults: Iterable[Fault], tree: Path, cache: Path) -> str | None:
    """What fails without any fault, of all tests that are named; None if all pass."""
    tests = sorted({test for fault in faults for test in fault.tests})
    status, output = run_tests(tree, tests, cache, LIMIT_S * len(tests))
    return None if status == _PASSED else output.strip()[-1000:]


def main(arguments: list[str] | None = None) -> int:
    """Tries the named faults, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault, or the first part of names; default: all")
    parser.add_argument("--cache", type=Path, help="keep the builds in this folder; default: delete them afterwards")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for the tests of one fault")
    parser.add_argument("--trusted", action="store_true", help="do not run the tests without the faults first")
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    options = parser.parse_args(arguments)
    faults = read()
    unknown = [name for name in options.names if not any(known.startswith(name) for known in faults)]
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}")
    chosen = [one for one in faults.values() if one.name.startswith(tuple(options.names) or "")]
    if options.list:
        print("\n".join(f"{one.name:40} {one.what}" for one in chosen))
        return 0
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="precast-mutation-") as folder:
        tree = copy_tree(Path(folder, "tree"))
        cache = options.cache.resolve() if options.cache else Path(folder, "cache")
        broken = None if options.trusted else failing(chosen, tree, cache)
        if broken is not None:
            print(f"the tests fail without any fault:\n{broken}")
            return 1
        for one in chosen:
            verdict = try_one(one, tree, cache, limit_s=options.limit)
            counts[verdict.word] = counts.get(verdict.word, 0) + 1
            print(f"{verdict.word:9} {one.name:40} {verdict.seconds:5.0f} s  {verdict.why}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 0 if set(counts) == {"killed"} else 1


if __name__ == "__main__":
    sys.exit(main())
