"""The stand-ins of the loader's tests, and a command line to give arguments to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.load.conftest import c_dir, toy_library

__all__ = ["c_dir", "toy_library"]

Precast = Callable[..., tuple[int, str, str]]


@pytest.fixture
def precast(capsys: pytest.CaptureFixture[str]) -> Precast:
    """Runs one command in this process: status, stdout, stderr."""
    from precast.__main__ import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run
