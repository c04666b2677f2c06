"""Plain torch in place of the kernels over lists: the GPU tests of the optimizers where nothing else is found."""

from __future__ import annotations

import pytest

from tests.kit import spawn

pytestmark = [pytest.mark.torch]


def run_tests(*arguments: str) -> str:
    """Runs tests in a process of its own, and returns what it said."""
    words = ("-m", "pytest", "-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", *arguments)
    env = spawn.environ(PYTHONPATH=spawn.search_path(spawn.CHECKOUT))
    return spawn.python(*words, cwd=spawn.CHECKOUT, env=env, timeout=600).stdout


@pytest.mark.gpu
@pytest.mark.compiler
def test_the_optimizers_where_the_loader_finds_nothing_else() -> None:
    files = ("tests/ops/test_fused_gpu.py", "tests/ops/test_ancestor_optimizers.py")
    said = run_tests("-p", "tests.ops.only_plain", "-m", "gpu", *files)
    assert "skipped" not in said
