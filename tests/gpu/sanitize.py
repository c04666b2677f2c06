"""Runs tests under compute-sanitizer, once for each of its tools, and says what each of them found.

``make sanitize``, or in the checkout, with precast to be imported:

    python -m tests.gpu.sanitize [--only RUN ...] [--logs FOLDER] [--timeout SECONDS] [-- ARGUMENTS OF PYTEST]

By default the tests of the optimizers on the GPU; after ``--`` any others, as ``-p tests.ops.only_plain
tests/ops/test_fused_gpu.py`` for plain torch in their place. One line for each run. Exit status: 0, every test passed
and no tool found anything; 1, not so; 3, there is no compute-sanitizer.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.debugger import find_tool

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/ops/test_fused_gpu.py",)


@dataclass(frozen=True)
class Run:
    """One tool. ``caching``: torch gives out its memory again, as ever; else each tensor is an allocation by itself.

    With it, only a byte outside of all that torch took from the driver is seen, and what is given out again counts as
    written. Without it, no graph can be captured, so those tests are left out.
    """

    tool: str
    caching: bool


RUNS = {
    "memcheck": Run("memcheck", caching=True),
    "memcheck-each": Run("memcheck", caching=False),
    "initcheck-each": Run("initcheck", caching=False),
    "racecheck": Run("racecheck", caching=True),
    "synccheck": Run("synccheck", caching=True),
}
NOT_CAPTURED = ("-k", "not graph and not captured")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


def count_of(said: str) -> int | None:
    """How many errors the tool counted; None if it gave no count, or says that it saw no call of CUDA."""
    found = _ERRORS.search(said)
    if found is None or "before first instrumented API call" in said:
        return None
    return int(found[1] or found[2])


def command_of(tool: str, run: Run, tests: list[str]) -> list[str]:
    """What is run: pytest, and what it starts, under the tool."""
    left_out = () if run.caching else NOT_CAPTURED
    under = [tool, "--tool", run.tool, "--target-processes", "all", "--print-limit", "50"]
    return [*under, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *tests]


def check(name: str, tool: str, tests: list[str], logs: Path, timeout: int) -> bool:
    """Makes one run, keeps what it said, and prints its line."""
    run, started = RUNS[name], time.monotonic()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    if not run.caching:
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    log = logs / f"{name}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command_of(tool, run, tests),
            cwd=ROOT,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = str(child.wait(timeout))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # the tool and what it watches
            child.wait()
            status = f"no end after {timeout} s"
    said = log.read_text(encoding="utf-8", errors="replace")
    count = count_of(said)
    ended = re.findall(r"^.*(?:passed|failed|error|no tests ran).* in [\d.]+s.*$", said, re.MULTILINE)
    good = status == "0" and count == 0
    counted = "gave no count" if count is None else f"{count} errors"
    tests_said = ended[-1] if ended else f"pytest said nothing, exit status: {status}"
    seconds = time.monotonic() - started
    print(f"{'ok  ' if good else 'FAIL'} {name:16} {counted}; {tests_said}; {seconds:.0f} s; {log}", flush=True)
    return good


def main(arguments: list[str]) -> int:
    """All runs that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=RUNS, help="one of the runs; by default all", metavar="RUN")
    parser.add_argument("--logs", type=Path, help="where what each run said is kept; by default a new folder")
    parser.add_argument("--timeout", type=int, default=900, metavar="SECONDS", help="for each run")
    parser.add_argument("tests", nargs="*", help="for pytest")
    options = parser.parse_args(arguments)
    tool = find_tool("compute-sanitizer")
    if tool is None:
        print("no compute-sanitizer on PATH, in CUDA_HOME or in /usr/local/cuda", file=sys.stderr)
        return 3
    logs = options.logs or Path(tempfile.mkdtemp(prefix="precast-sanitize-"))
    logs.mkdir(parents=True, exist_ok=True)
    results = [check(name, tool, options.tests or list(TESTS), logs, options.timeout) for name in options.only or RUNS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
