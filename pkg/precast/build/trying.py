"""``python -m precast.build test WHEEL --torch 2.13,2.14 --tests tests``: try a wheel in a clean environment per torch.

An environment has that torch, the wheel, what its metadata and the tests require, and pytest: nothing else of this
machine. The tests are copied away from their sources, so that they import what was installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from precast._abi.settings import Settings
from precast._builder import failure, process, wheel_file
from precast._load import probe
from precast.build import environments, wheels
from precast.build import wheel as wheel_rules
from precast.build.environments import Job
from precast.errors import KernelError, block

_PYTEST = "pytest>=8"
# Exit statuses of pytest: none failed, some failed, and there was no test. Any other one is no result.
_RAN = (0, 1, 5)


@dataclass(frozen=True)
class Tried:
    """The tests of a wheel in one torch; ``said`` is the first failure, the refusal if none passed, or empty."""

    job: Job
    passed: int
    failed: int
    skipped: int
    seconds: float
    said: str

    @property
    def bad(self) -> bool:
        """Whether a test failed, or none passed."""
        return bool(self.failed) or not self.passed

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"{self.job.name}: {counts}, {self.seconds:.0f} s" + (f"\n  {self.said}" if self.said else "")


def main(arguments: Sequence[str]) -> int:
    """Try wheels; print a line for each and torch. Exit status 1: a test failed, or none passed."""
    parser = argparse.ArgumentParser(prog="python -m precast.build test", description=__doc__)
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    wheels.add_jobs(parser)
    parser.add_argument(
        "--tests", type=Path, nargs="+", required=True, metavar="PATH", help="files or folders with tests for pytest"
    )
    parser.add_argument(
        "--requires",
        nargs="*",
        default=[],
        metavar="PACKAGE",
        help="packages that the tests need: names, or wheel files",
    )
    options = parser.parse_args(arguments)
    try:
        jobs = wheels.jobs_of(options.torch, options.cuda)
    except ValueError as error:
        parser.error(str(error))
    settings, failed = probe.read_settings(building=True), False
    try:
        _refuse_missing(options.wheels, options.tests)
        for wheel in options.wheels:
            for job in jobs:
                done = tried(wheel, job, options.tests, options.requires, settings)
                print(f"{wheel.name}: {done}", flush=True)
                failed |= done.bad
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    return int(failed)


def _refuse_missing(paths: Sequence[Path], tests: Sequence[Path]) -> None:
    """KernelError for what is no wheel or no test, before a torch is installed, which takes minutes."""
    for wheel in paths:
        _requirements(wheel)
    for path in tests:
        _there(path)


def tried(wheel: Path, job: Job, tests: Sequence[Path], requires: Sequence[str], settings: Settings) -> Tried:
    """Run tests against a wheel in one torch; ``requires`` has packages of the package index and files of wheels.

    KernelError if the environment cannot be made, or if pytest does not run.

    >>> tried(Path("dist/my_ops-1.0-py3-none-any.whl"), job, [Path("tests")], ["numpy"], Settings())  # doctest: +SKIP
    """
    made, start = environments.environment(job, settings), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="precast-test-") as folder:
        work = Path(folder)
        wheels = [wheel, *(Path(text) for text in requires if text.endswith(".whl"))]
        wanted = [text for one in wheels for text in _requirements(one)]
        wanted += [*(text for text in requires if not text.endswith(".whl")), _PYTEST]
        site = environments.folder_with(wanted, work / "site", made, f"what the tests of {wheel.name} require")
        options = ("--no-deps", "--upgrade", "--target", str(site), *(str(one.resolve()) for one in wheels))
        install = environments.pip(made.python, "install", *options)
        environments.run(install, work, environments.plain(os.environ), f"{wheel.name} for {job.name}")
        places = [_copied(path, work / "tests") for path in tests]
        report = work / "done.xml"
        command = [str(made.python), "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", f"--junitxml={report}"]
        env = {**environments.plain(os.environ), "PYTHONPATH": str(site), "PRECAST_CACHE_DIR": str(work / "cache")}
        env |= {"TMPDIR": folder}  # what tests that are ended have no time to remove goes with it
        shell = ["sh", "-c", 'cd "$0" && exec "$@"', str(work / "tests"), *command, *places]
        status, said = process.run(shell, log=work / "tests.log", environment=env, umask=process.INHERITED)
        if status not in _RAN:
            raise KernelError(
                f"the tests of {wheel.name} did not run in {job.name}",
                found=failure.told(said),
                needed="a run of pytest that collects the tests",
                fix="correct the first error of pytest above",
            )
        passed, failed, skipped = _counts(report)
    listed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    first = next((line for line in listed if not line.startswith("SKIPPED")), "")
    if not passed + failed:
        first = _no_proof(places, skipped, listed)
    return Tried(job, passed, failed, skipped, time.perf_counter() - start, first)


def _no_proof(places: Sequence[str], skipped: int, listed: Sequence[str]) -> str:
    """The refusal of a wheel for which no test passed or failed, with pytest's reason of each skip."""
    return block(
        f"no test shows that the wheel works: pytest {' '.join(places)}",
        found=f"{skipped} skipped, 0 passed{''.join(f'; {line}' for line in listed[:1])}",
        needed="at least one test that passes",
        fix=(
            "name what the tests import in --requires, or `requires` in a list",
            "name tests that run on this machine in --tests, or `tests` in a list",
        ),
    )


def _copied(path: Path, to: Path) -> str:
    """Copy a test file or folder; return its name."""
    to.mkdir(exist_ok=True)
    _there(path)
    if path.is_dir():
        shutil.copytree(path, to / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, to / path.name)
    return path.name


def _there(path: Path) -> None:
    if not (path.is_dir() or path.is_file()):
        raise KernelError(
            f"the test {path} cannot be run",
            found="no file or folder of that name",
            needed="a file or a folder with tests for pytest",
            fix="repeat the command with tests that exist: a file or a folder",
        )


def _requirements(wheel: Path) -> list[str]:
    """The requirements of a wheel without extras, torch and precast."""
    message = wheel_file.headers(wheel_rules.metadata(wheel))
    return [text for text in message.get_all("Requires-Dist", ()) if not re.search(r";.*\bextra\b", text)]


def _counts(report: Path) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped, from pytest's own report."""
    (suite,) = ET.parse(report).getroot()
    total, *bad, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))
    return total - sum(bad) - skipped, sum(bad), skipped
