"""Where a kernel comes from in each mode, and what is said about it."""

from __future__ import annotations

import platform
import re

import pytest

from precast._builder import flags
from tests.load.conftest import Site

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

STEP = """
import torch, precast
from precast.ops import adam_
weight, grad, first, second = torch.ones(100), torch.ones(100), torch.zeros(100), torch.zeros(100)
beta1, beta2 = 0.9, 0.999
adam_([weight], [grad], [first], [second], lr=0.5, beta1=beta1, beta2=beta2, eps=1e-8, weight_decay=0.0,
      bias_correction1=1 - beta1, bias_correction2=1 - beta2)
assert torch.allclose(weight, torch.full((100,), 0.5)), weight
print(precast.load("adam_").host.kind)
"""


def test_a_prebuilt_kernel_is_used_in_silence_and_nothing_is_written(wheel: Site) -> None:
    done = wheel.run(STEP, env={"PATH": "/nonexistent", "PRECAST_CACHE_DIR": str(wheel.home / "cache")})
    assert (done.returncode, done.stdout, done.stderr) == (0, "prebuilt\n", "")
    assert list(wheel.home.iterdir()) == []


@pytest.mark.parametrize("mode", ["auto", "aot"])
def test_the_mapped_library_is_the_prebuilt_one(wheel: Site, mode: str) -> None:
    said = wheel.ok(STEP + "print(open('/proc/self/maps').read())", env={"PRECAST_JIT": mode})
    assert set(re.findall(r"/\S*(?:cpu_adam|kernels-)\S*\.so", said)) == {str(wheel.library)}


def test_mode_jit_takes_its_own_build_and_leaves_the_prebuilt_alone(wheel: Site) -> None:
    said = wheel.ok(STEP + "print(open('/proc/self/maps').read())", env={"PRECAST_JIT": "jit"})
    assert said.startswith("cache\n") and str(wheel.library) not in said


def test_the_log_tells_the_same(built: Site) -> None:
    code = "import logging; logging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')\n" + STEP
    done = built.run(code)
    assert "precast: the host library of cpu_adam comes from the build cache (" in done.stderr, done.stderr


def test_off_and_aot_refuse_and_build_nothing(bare: Site) -> None:
    for mode in ("aot", "none"):
        said = bare.refusal(STEP, env={"PRECAST_JIT": mode, "PATH": "/nonexistent"})
        assert said.startswith("JitDisabled: adam_ cannot be loaded for cpu"), said
        assert f"PRECAST_JIT={mode}" in said and "export PRECAST_JIT=auto" in said
    assert not bare.cache.exists()


def test_a_mode_that_does_not_exist_is_refused_by_name(bare: Site) -> None:
    assert "PRECAST_JIT='allways'" in bare.refusal(STEP, env={"PRECAST_JIT": "allways"})


LEVEL = """
import ctypes, torch, precast
loaded = precast.load("rms_norm")
x = torch.randn(3, 70)
assert torch.allclose(precast.ops.rms_norm(x, torch.ones(70)), torch.nn.functional.rms_norm(x, (70,)), rtol=1e-5)
"""


@pytest.mark.parametrize("mode", ["auto", "jit"])
def test_a_cpu_level_can_be_forced_and_one_that_is_not_here_is_refused(wheel: Site, mode: str) -> None:
    least = flags.cpu_levels(platform.machine())[0].name
    wheel.ok(LEVEL, env={"PRECAST_JIT": mode, "PRECAST_CPU_LEVEL": least})
    said = wheel.refusal(
        "import precast\nprecast.load('rms_norm')", env={"PRECAST_JIT": mode, "PRECAST_CPU_LEVEL": "z9"}
    )
    assert said.startswith("KernelUnavailable: PRECAST_CPU_LEVEL=z9 is not available here\n"), said
    assert "CPU level 'z9'" in said and "unset PRECAST_CPU_LEVEL" in said
