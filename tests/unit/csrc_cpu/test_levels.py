"""What holds for every level before anything is computed: it can be chosen, and its code stays its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precast._abi.settings import Settings
from precast._builder import catalogue, flags, toolchain
from tests.kit import product, spawn

NAMES = [level.name for level in flags.cpu_levels(platform.machine())]
CPU_SOURCES = [source for family in catalogue.FAMILIES for source in family.cpu]


@pytest.mark.torch
@pytest.mark.compiler
def test_every_level_of_this_machine_can_be_chosen(adam_levels: Any, level: str) -> None:
    # fails if the library refuses the level: choose() raises
    adam_levels.choose(level)


@pytest.mark.torch
@pytest.mark.compiler
def test_a_level_that_is_none_is_refused_by_name(adam_levels: Any) -> None:
    with pytest.raises(ValueError, match=f"no CPU level 'sse9' here; there are: {' '.join(NAMES)}"):
        adam_levels.choose("sse9")


def compiled(
    tmp_path: Path, checkout: Path, source: str, options: tuple[str, ...], machine: str = platform.machine()
) -> subprocess.CompletedProcess[str]:
    compiler, looked_at = toolchain.find_compiler(Settings.from_env(os.environ), machine)
    assert compiler is not None, looked_at
    command = [compiler.path, *flags.host_options("g++", debug=False), *options, "-c", str(checkout / "csrc" / source)]
    return spawn.run(*command, "-o", tmp_path / "unit.o", status=None)


@pytest.mark.compiler
@pytest.mark.parametrize("level", flags.cpu_levels(platform.machine()), ids=lambda level: level.name)
@pytest.mark.parametrize("source", CPU_SOURCES)
def test_a_level_shares_no_function_with_another(source: str, level: flags.CpuLevel) -> None:
    """A symbol that two levels define alike would be kept once by the linker, perhaps in its AVX-512 form."""
    (unit,) = [u for u, _ in product.plan().units if u.source == source and u.name.endswith(f".{level.name}")]

    def symbols(*options: str) -> list[str]:
        listing = spawn.run("nm", "--demangle", *options, product.built()[1][unit.name]).stdout
        return [line.lstrip("0123456789abcdef ").split(maxsplit=1)[1] for line in listing.splitlines()]

    names = symbols("--extern-only", "--defined-only")
    assert names, "the unit defines nothing"
    assert [name for name in names if f"::{level.name}::" not in name] == []
    assert [name for name in symbols("--undefined-only") if "precast" in name] == [], "code that is not its own"


SVE = "-march=armv8.2-a+sve"
WRONG = [
    ("x86_64", "", "-DPRECAST_CPU_LEVEL=<level> is missing"),
    ("x86_64", "-DPRECAST_CPU_LEVEL=avx1024", "PRECAST_CPU_LEVEL is none of baseline avx2 avx512 on x86_64"),
    ("x86_64", "-DPRECAST_CPU_LEVEL=avx2", "level avx2 needs -mavx2 -mfma -mf16c"),
    ("x86_64", "-DPRECAST_CPU_LEVEL=avx512 -mavx512f", "level avx512 needs -mavx512f -mavx512bw"),
    ("x86_64", "-DPRECAST_CPU_LEVEL=neon", "PRECAST_CPU_LEVEL is none of"),
    ("aarch64", "-DPRECAST_CPU_LEVEL=avx2", "of neon sve128 sve256 sve512 on aarch64"),
    ("aarch64", "-DPRECAST_CPU_LEVEL=sve256", "level sveN needs -march=armv8.2-a+sve -msve-vector-bits=N"),
    ("aarch64", f"-DPRECAST_CPU_LEVEL=sve256 {SVE}", "level sveN needs"),
    ("aarch64", f"-DPRECAST_CPU_LEVEL=sve256 {SVE} -msve-vector-bits=128", "level sveN needs"),
]


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [pytest.param(*row, marks=() if row[0] == platform.machine() else pytest.mark.qemu) for row in WRONG],
)
def test_a_level_without_its_options_does_not_compile(
    tmp_path: Path, checkout: Path, machine: str, options: str, message: str
) -> None:
    done = compiled(tmp_path, checkout, CPU_SOURCES[0], tuple(options.split()), machine)
    assert done.returncode != 0
    assert message in done.stderr


ONE_LEVEL = """
import ctypes, platform, sys, torch, precast
from precast._builder import flags, toolchain
from precast.core import probe
best = flags.best_level(platform.machine(), probe.cpu_features()).name
library = ctypes.CDLL(str(precast.load("rms_norm", "cpu").host.path))
said = ctypes.create_string_buffer(400)
x = torch.randn(3, 70)
y = precast.ops.rms_norm(x, torch.ones(70))
assert torch.allclose(y, torch.nn.functional.rms_norm(x, (70,), eps=1e-6), rtol=1e-5), "wrong numbers"
assert library.precast_set_cpu_level(best.encode(), said, 400) == 0, said.value
for level in flags.cpu_levels(platform.machine()):
    if level.name != best:
        assert library.precast_set_cpu_level(level.name.encode(), said, 400) == 1
        assert f"holds '{best}' alone" in said.value.decode(), said.value
"""


@pytest.mark.torch
@pytest.mark.compiler
def test_a_build_at_run_time_holds_this_machines_level_alone(tmp_path: Path, checkout: Path) -> None:
    """In a child process, as the tests' own process builds every level."""
    env = {**os.environ, "PRECAST_JIT": "jit", "PYTHONPATH": str(checkout / "pkg")}
    done = subprocess.run(
        [sys.executable, "-c", ONE_LEVEL], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
