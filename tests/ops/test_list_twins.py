"""Plain torch in place of the kernels over lists: the GPU tests of the optimizers where nothing else is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import precast

pytestmark = [pytest.mark.torch]

ROOT = Path(__file__).resolve().parents[2]


def run_tests(*arguments: str) -> str:
    """Runs tests in a process of its own, and returns what it said."""
    paths = [str(ROOT), str(Path(precast.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", *arguments]
    everything = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.compiler
def test_the_optimizers_where_the_loader_finds_nothing_else() -> None:
    files = ("tests/ops/test_fused_gpu.py", "tests/ops/test_ancestor_optimizers.py")
    said = run_tests("-p", "tests.ops.only_twins", "-m", "gpu", *files)
    assert "skipped" not in said
