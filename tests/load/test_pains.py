"""Those of the fifteen pains that are about whole processes; the others, and the list, are in tests/defects."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.load.conftest import Site

STEP = "import precast; print(precast.load('adam_').host.kind)"


@pytest.mark.torch
@pytest.mark.compiler
def test_pain_05_no_compiler_is_demanded_where_nothing_is_built(wheel: Site) -> None:
    env = {"PATH": "/nonexistent", "CUDA_HOME": "/nonexistent", "PRECAST_CACHE_DIR": str(wheel.home / "cache")}
    done = wheel.run("import precast; print(precast.load('adam_').host.kind)", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "prebuilt\n", "")


@pytest.mark.torch
@pytest.mark.compiler
def test_pain_09_a_home_that_cannot_be_written_is_no_obstacle(wheel: Site, tmp_path: Path) -> None:
    (tmp_path / "no-home").write_text("a file: root could write into a folder of any mode")
    env = {"HOME": str(tmp_path / "no-home"), "PRECAST_CACHE_DIR": "", "TMPDIR": str(tmp_path), "PRECAST_JIT": "aot"}
    before = sorted(wheel.folder.rglob("*"))
    assert wheel.ok("import precast; print(precast.load('adam_').host.kind)", env=env) == "prebuilt\n"
    assert [p for p in sorted(wheel.folder.rglob("*")) if p not in before and "__pycache__" not in str(p)] == []


@pytest.mark.torch
@pytest.mark.compiler
def test_pain_10_a_slow_first_use_says_what_why_and_where_its_log_is_and_only_the_first_time(pure: Site) -> None:
    first = pure.run(STEP)
    assert (first.returncode, first.stdout) == (0, "jit\n"), first.stderr
    lines = first.stderr.splitlines()
    assert len(lines) == 2, lines
    assert re.fullmatch(
        r"precast: building the host library of cpu_adam with g\+\+ \S+ \(.*prebuilt.*\); log: \S+/build\.log",
        lines[0],
    )
    assert re.fullmatch(r"precast: built the host library of cpu_adam in \d+\.\d s", lines[1])
    second = pure.run(STEP, env={"PATH": "/nonexistent:/usr/bin:/bin"})
    assert (second.stdout, second.stderr) == ("cache\n", "")


@pytest.mark.torch
def test_pain_12_importing_makes_no_cuda_context_and_a_fork_is_harmless(bare: Site) -> None:
    code = """
        import os, sys
        import precast
        assert "torch" not in sys.modules
        import precast.ops, precast.kernel_loader, torch
        assert not torch.cuda.is_initialized()
        assert "libcuda.so" not in open("/proc/self/maps").read()
        from precast._load import loader
        held = loader._state.locks["cpu_adam"]
        held.acquire()
        child = os.fork()
        if child == 0:
            fresh = loader._state.locks["cpu_adam"]
            os._exit(0 if fresh is not held and fresh.acquire(blocking=False) else 1)
        assert os.waitpid(child, 0)[1] == 0
    """
    assert bare.ok(textwrap.dedent(code), env={"PYTHONWARNINGS": "ignore"}) == ""
