"""The levels of both architectures on the processors they are for, emulated: the numbers, the choice, and its limits.

The objects are those of the product, taken from the build cache; levels.cpp calls them without torch.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from precast._builder import catalogue, flags
from tests.kit import product, spawn
from tools.shared import binaries, kernel_results
from tools.shared.kernel_results import Results

pytestmark = [pytest.mark.qemu, pytest.mark.compiler]

DRIVER = Path(__file__).with_name("levels.cpp")
CPU_SOURCES = {"cpu/cpu_level.cpp", *(source for family in catalogue.FAMILIES for source in family.cpu)}
ILLEGAL_INSTRUCTION = -4
# An ARM processor without SVE, and one for each vector length (in 16 bytes).
PROCESSORS = {
    "neon": "cortex-a57",
    "sve128": "max,sve-max-vq=1",
    "sve256": "max,sve-max-vq=2",
    "sve512": "max,sve-max-vq=4",
}


class Built:
    """The product's library for one machine, and the driver around its CPU objects."""

    def __init__(self, machine: str, work: Path) -> None:
        library, objects = product.built(machine)
        self.library = library.read_bytes()
        plan = product.plan(machine)
        compiler = plan.compiler
        self.objects = {unit.name: objects[unit.name] for unit, _ in plan.units if unit.source in CPU_SOURCES}
        assert len(self.objects) == 1 + len(flags.cpu_levels(machine)) * (len(CPU_SOURCES) - 1)
        self.prefix = compiler.path.removesuffix("g++")
        self.driver = work / f"levels-{machine}"
        options = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{plan.roots['csrc']}", "-static")
        spawn.run(compiler.path, *options, DRIVER, *self.objects.values(), "-o", self.driver)

    def said(self, program: str, *arguments: str | Path) -> str:
        """What one of the compiler's companions prints."""
        return spawn.run(f"{self.prefix}{program}", *arguments).stdout


@pytest.fixture(scope="module")
def x86(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built("x86_64", tmp_path_factory.mktemp("x86"))


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built("aarch64", tmp_path_factory.mktemp("arm"))


def run(emulator: str, processor: str, built: Built, *arguments: str) -> subprocess.CompletedProcess[str]:
    work = built.driver.parent  # a crash may leave a core file
    return spawn.run(emulator, "-cpu", processor, built.driver, *arguments, status=None, cwd=work)


def computed(emulator: str, processor: str, built: Built, level: str) -> Results:
    """What the driver computes with the level that it chose, which must be ``level``."""
    path = built.driver.with_name("results")
    done = run(emulator, processor, built, "", str(path))
    assert (done.returncode, done.stdout) == (0, f"{level}\n"), done.stderr
    found = kernel_results.read(path)
    assert len(found) > 600
    return found


@pytest.fixture(scope="module")
def avx2(x86: Built) -> Results:
    """The reference: a level that the tests of this folder hold against float64, with fused multiply-add."""
    return computed("qemu-x86_64", "max", x86, "avx2")


@pytest.mark.parametrize("level", PROCESSORS)
def test_arm_gives_the_bits_of_x86(arm: Built, avx2: Results, level: str) -> None:
    """Elementwise results and reductions alike, in every format: sixteen lanes, one order, fused multiply-add."""
    assert kernel_results.furthest(computed("qemu-aarch64", PROCESSORS[level], arm, level), avx2) == {}


def test_the_comparison_can_fail(x86: Built, avx2: Results) -> None:
    """x86's baseline has no fused multiply-add, and is off where the others agree."""
    far = kernel_results.furthest(computed("qemu-x86_64", "Nehalem", x86, "baseline"), avx2)
    assert far["adam.0.param"] == 1 and len(far) > 100


@pytest.mark.parametrize(
    ("processor", "asked", "said"),
    [
        ("max,sve-max-vq=8,sve-default-vector-length=128", "", "neon"),  # 1024 bits: nothing is compiled for that
        ("max,sve-max-vq=2", "neon", "neon"),
        ("max,sve-max-vq=2", "sve", "sve256"),
        ("max,sve-max-vq=2", "sve256", "sve256"),
        ("max,sve-max-vq=2", "sve128", "CPU level 'sve128' was asked for; this machine has 'sve256'"),
        ("max,sve-max-vq=2", "sve512", "CPU level 'sve512' was asked for; this machine has 'sve256'"),
        ("cortex-a57", "sve", "no CPU level 'sve' here; there are: neon sve128 sve256 sve512"),
        ("cortex-a57", "sve128", "CPU level 'sve128' was asked for; this machine has 'neon'"),
    ],
)
def test_a_level_is_for_one_vector_length(arm: Built, processor: str, asked: str, said: str) -> None:
    done = run("qemu-aarch64", processor, arm, asked, "/dev/null")
    assert (done.stdout + done.stderr).strip() == said
    assert done.returncode == (0 if asked in said and " " not in said else 1)


@pytest.mark.parametrize(("processor", "level"), [("Nehalem", "baseline"), ("Haswell", "avx2")])
def test_avx512_is_not_executed_where_it_is_not(x86: Built, processor: str, level: str) -> None:
    """The emulator knows no AVX-512 and ends a program that executes any, as the last lines show."""
    computed("qemu-x86_64", processor, x86, level)
    done = run("qemu-x86_64", processor, x86, "avx512", "/dev/null")
    assert f"CPU level 'avx512' was asked for; this machine has '{level}'" in done.stderr and done.returncode == 1
    assert run("qemu-x86_64", processor, x86, "unchecked").returncode == ILLEGAL_INSTRUCTION


def test_a_parameter_of_more_elements_than_31_bits_count(x86: Built) -> None:
    """On this processor itself; address space is all it takes."""
    assert spawn.run(x86.driver, "huge").stderr == ""


def test_sve_is_not_executed_where_it_is_not(arm: Built) -> None:
    assert run("qemu-aarch64", "cortex-a57", arm, "unchecked").returncode == ILLEGAL_INSTRUCTION
    assert run("qemu-aarch64", "max,sve-max-vq=4", arm, "unchecked").returncode == 0


def test_every_arm_level_keeps_to_itself(arm: Built) -> None:
    """On the objects: a level's symbols are in its namespace, and its vectors have its length."""
    patterns = {"sve128": "vl16", "sve256": "vl32", "sve512": "vl64"}
    for unit, path in arm.objects.items():
        level = unit.rpartition(".")[2]
        symbols = [line.split(maxsplit=2)[2] for line in arm.said("nm", "-gC", "--defined-only", path).splitlines()]
        code = arm.said("objdump", "-d", "--no-show-raw-insn", path)
        lengths = set(re.findall(r"\tptrue\tp\d+\.b, (\w+)", code)) - {"vl1"}  # one lane, at any length
        if level in PROCESSORS:
            assert symbols and [name for name in symbols if f"::{level}::" not in name] == [], unit
        assert lengths == ({patterns[level]} if level in patterns else set()), unit
        assert bool(re.search(r"\bz\d+\.[bhsd]\b", code)) == (level in patterns), unit


def test_every_x86_level_keeps_to_its_registers(x86: Built) -> None:
    """What a level's symbols are is asked of each source in test_levels.py."""
    allowed = {"avx2": {"xmm", "ymm"}, "avx512": {"xmm", "ymm", "zmm"}}
    for unit, path in x86.objects.items():
        level = unit.rpartition(".")[2]
        used = set(re.findall(r"%([xyz]mm)\d", x86.said("objdump", "-d", "--no-show-raw-insn", path)))
        assert used <= allowed.get(level, {"xmm"}), unit
        assert level not in allowed or max(used) == max(allowed[level]), unit


def test_the_library_is_what_a_wheel_may_hold(arm: Built) -> None:
    facts = binaries.read_library(arm.library)
    assert (facts.machine, facts.cpu_levels) == ("aarch64", tuple(PROCESSORS))
    shorter = re.sub(rb"[\x60-\x6f](?=\xe1\x18\x25)", b"\x40", arm.library)  # "all of 64 bytes" as "all of 32"
    assert binaries.read_library(shorter).cpu_levels == ("neon", "sve128", "sve256")
    assert facts.glibc <= (2, 28) and facts.glibcxx <= flags.GLIBCXX_CEILING
    assert set(facts.families) == {family.name for family in catalogue.FAMILIES}
