"""Builds, installs and tests the packages in this folder, each in a clean environment of its own.

An environment sees a wheel of this checkout, the torch and the tools of the environment that runs this, and nothing
else. Every package becomes a wheel, which is audited where ``precast.build`` made it, installed, and asked by the tests
of the package itself. A package that cannot be built with this torch is skipped, with the reason. Nothing outside a
temporary folder is changed. The exit status is 0 only if all the others held.

Usage: python examples/downstream.py [PACKAGE...]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What is lent to the environments: too large to install four times, or not what is tested here.
LENT = ("torch", "setuptools", "ninja", "pytest", "numpy", "pip", "triton")
AT_ONCE = 2  # most of a package's time is one compiler's, or one Python's
# What would change a build, or find something of the checkout.
_FOREIGN = ("PRECAST_", "PYTHON", "CUDA_EXT", "TORCH_EXTENSIONS_DIR", "PYTEST_", "CXX", "DEBUG", "MAKE")


@dataclass(frozen=True)
class Package:
    """A folder beside this file, and the variables its author would set to build it.

    A ``stable`` one needs the headers of torch's stable ABI: a torch below 2.10 has none, and a checkout brings none.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    stable: bool = False


PACKAGES = (
    Package("image_ops", {"CUDA_EXT": "1"}),
    Package("edits", stable=True),
    Package("rowwise"),
    Package("rowstats", stable=True),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a package: its wheel, what pytest closed with, the seconds it took; or why there is none."""

    package: str
    wheel: str
    said: str
    seconds: float
    verdict: str = "ok"  # or "skipped", "FAILED"


class StepFailed(Exception):
    """A command of a package failed; says what it said."""


def environment(work: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """This environment without the settings that would change a build, and with caches that start empty."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    own = {"PRECAST_CACHE_DIR": work / "cache", "TORCH_EXTENSIONS_DIR": work / "extensions"}
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(work / "wheels")}
    return {**kept, **{name: str(path) for name, path in own.items()}, **quiet, **variables}


def run(command: Sequence[object], cwd: Path, env: Mapping[str, str]) -> str:
    """Run a command; what it said comes back, or in a StepFailed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise StepFailed(f"{' '.join(words)}\nexit status {done.returncode}\n{done.stdout}")
    return done.stdout


def precast_wheel(work: Path) -> None:
    """The wheel of this checkout, in the folder that environments install from."""
    made = work / "wheels"
    made.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", made, HERE.parent]
    run(wheel, work, {**env, "PRECAST_CACHE_DIR": str(work / "cache")})


def lend(folder: Path, names: Sequence[str] = LENT) -> None:
    """Link what is named and what it requires, and nothing else of this environment: not precast."""
    folder.mkdir()
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # not here, or a requirement of another system
            continue
        needed = (line for line in distribution.requires or () if "extra ==" not in line)
        todo += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)


def clean_python(folder: Path, lent: Path) -> Path:
    """A fresh virtual environment that sees what is lent; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
    return folder / "bin" / "python"


def has_manifest(wheel: Path) -> bool:
    """Whether precast.build made it."""
    with zipfile.ZipFile(wheel) as archive:
        return any(name.endswith("_C/build_info.json") for name in archive.namelist())


def missing_headers(python: Sequence[object], cwd: Path, env: Mapping[str, str]) -> str | None:
    """Why nothing can be built on the stable ABI in this environment, in precast's words; None if it can."""
    try:
        run([*python, "-m", "precast.build", "--include"], cwd, env)
    except StepFailed as failure:
        said = str(failure).splitlines()
        if any(line.startswith("the headers of the stable ABI of torch are missing") for line in said):
            return next(line.split(maxsplit=1)[1] for line in said if line.startswith("  found"))
        raise
    return None


def try_package(package: Package, work: Path) -> Outcome:
    """Build, audit, install and test one package."""
    start = time.perf_counter()
    env = environment(work, package.variables)
    home = work / package.name
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", ".pytest_cache")
    tree = Path(shutil.copytree(HERE / package.name, home / "tree", ignore=ignored))
    name = "not built"
    try:
        python = clean_python(home / "venv", work / "lent")
        run([python, "-m", "pip", "install", "-q", "precast"], tree, env)
        missing = missing_headers([python], home, env) if package.stable else None
        if missing is not None:
            return Outcome(package.name, package.name, missing, time.perf_counter() - start, "skipped")
        made = home / "dist"
        run([python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", made, "."], tree, env)
        (wheel,) = made.glob("*.whl")
        name = wheel.name
        if has_manifest(wheel):
            run([python, "-m", "precast.build", "--audit", wheel], home, env)
        run([python, "-m", "pip", "install", "-q", wheel], home, env)
        said = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], tree, env)
    except StepFailed as failure:
        return Outcome(package.name, name, str(failure), time.perf_counter() - start, "FAILED")
    return Outcome(package.name, name, said.strip().splitlines()[-1], time.perf_counter() - start)


def main(arguments: Sequence[str]) -> int:
    """Try the packages that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(known.name for known in PACKAGES))
    asked: list[str] = parser.parse_args(arguments).packages
    unknown = sorted(set(asked) - {known.name for known in PACKAGES})
    if unknown:
        parser.error(f"no package {', '.join(unknown)}; there are {', '.join(known.name for known in PACKAGES)}")
    with tempfile.TemporaryDirectory(prefix="precast-examples-") as folder:
        work = Path(folder)
        precast_wheel(work)
        lend(work / "lent")
        wanted = [package for package in PACKAGES if not asked or package.name in asked]
        outcomes = []
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            for done in as_completed([pool.submit(try_package, package, work) for package in wanted]):
                outcomes.append(done.result())
                print(line(outcomes[-1]), flush=True)
    held = sum(outcome.verdict == "ok" for outcome in outcomes)
    print(f"{held} of {len(outcomes)} packages were built, installed and tested")
    return int(any(outcome.verdict == "FAILED" for outcome in outcomes))


def line(outcome: Outcome) -> str:
    """One outcome, on one line unless it failed."""
    return f"{outcome.verdict:8}{outcome.wheel:50} {outcome.said}, {outcome.seconds:.0f} s in all"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
