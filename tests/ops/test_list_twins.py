"""The Triton twins of the ops over lists: the tests of the optimizers and of those ops once more, over the twins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import precast

pytestmark = [pytest.mark.torch, pytest.mark.triton]

ROOT = Path(__file__).resolve().parents[2]
STEPS, CHANGES, BAD_INPUT = (f"tests/unit/csrc/test_fused_{name}.py" for name in ("optimizers", "changes", "bad_input"))
FUNCTIONS = "tests/unit/csrc/test_list_functions.py"
# Each kind of update, dtypes, and what is exchanged between two steps; the interpreter takes 2 ms for a program.
# It cuts bfloat16 instead of rounding.
CHOSEN = (
    "not bfloat16 and (adam-torch.float32 or torch.float16 and (adamw or amsgrad or nesterov or adagrad)"
    " or lamb and 0.1 or clipping or groups or odd_offsets or norms_and_sums or shards or unknown_plans"
    " or one_range or move_or_come or exchanged and (data or layout) or swapped or share_memory or without_bias"
    " or test_list and float32 or refused)"
)


def run_tests(*arguments: str, **environment: str) -> str:
    """Runs tests in a process of its own, as Triton reads its variable when it is imported; returns what it said."""
    paths = [str(ROOT), str(Path(precast.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", *arguments]
    everything = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_optimizers_in_tritons_interpreter() -> None:
    said = run_tests(STEPS, CHANGES, BAD_INPUT, FUNCTIONS, "-k", CHOSEN, TRITON_INTERPRET="1")
    assert int(said.rpartition(" passed")[0].split()[-1]) >= 39, said


@pytest.mark.gpu
@pytest.mark.compiler
def test_the_optimizers_where_the_loader_finds_nothing_else(tmp_path: Path) -> None:
    files = ("tests/ops/test_fused_gpu.py", "tests/ops/test_ancestor_optimizers.py")
    said = run_tests("-p", "tests.ops.only_twins", "-m", "gpu", *files, TRITON_CACHE_DIR=str(tmp_path))
    assert "skipped" not in said
