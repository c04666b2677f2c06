"""Child processes whose status is judged and whose words are kept: a Python, a compiler, or any other program."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import precast

CHECKOUT = Path(__file__).resolve().parents[2]


def environ(*left_out: str, **variables: object) -> dict[str, str]:
    """This process's environment without the variables that begin so, and with others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {name: str(value) for name, value in variables.items()}


def search_path(*folders: Path) -> str:
    """A PYTHONPATH with these folders, the package that is tested, and what this process was given."""
    package = Path(precast.__file__).resolve().parents[1]
    return os.pathsep.join(filter(None, [*map(str, folders), str(package), os.environ.get("PYTHONPATH")]))


def run(
    *command: object,
    status: int | None = 0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a program that must end with a status; None: whatever it ends with."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=env, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert status in (done.returncode, None), f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def python(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """Do the same with this Python: ``-c`` and code, ``-m`` and a module, or a file."""
    return run(sys.executable, *words, **how)


@contextlib.contextmanager
def started(*command: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that goes on beside the test, and ends with it; what it prints is for the test to read."""
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """What a condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.01)
    return found


def library(path: Path, source: str | Path, *options: object) -> Path:
    """Compile a shared library of a C++ text or file; options that name other libraries come after it."""
    code = ("-x", "c++", "-", "-x", "none") if isinstance(source, str) else (source,)
    text = source if isinstance(source, str) else None
    run(_compiler(), "-shared", "-fPIC", *code, *options, "-o", path, cwd=path.parent, stdin=text)
    return path


def program(path: Path, *sources_and_options: object) -> Path:
    """Compile a program."""
    run(_compiler(), "-std=c++17", "-O1", *sources_and_options, "-o", path)
    return path


def _compiler() -> str:
    return shutil.which(os.environ.get("CXX", "g++")) or "clang++"
