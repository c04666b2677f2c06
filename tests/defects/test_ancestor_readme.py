"""The three cases of the ancestor's README, as they are written there, ``colossalai.kernel`` read as ``precast``."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest

from precast.errors import KernelUnavailable
from precast.extension.module import KernelModule

CASE_1 = """
from precast.kernel_loader import CPUAdamLoader

# load the kernel compatible with the current hardware
kernel = CPUAdamLoader().load()
"""

CASE_2 = """
from precast.kernel_loader import CPUAdamLoader

# load the kernel by giving the kernel name
kernel = CPUAdamLoader().load(ext_name="cpu_adam_arm")
"""

CASE_3 = """
from precast.kernel_loader import CPUAdamLoader
from precast.base_extension import _Extension

# create your own extension class
class MyExtension(_Extension):

    def __init__(self):
        self._name = "my_extension"
        self._support_aot = True
        self._support_jit = True
        self.priority = 10

    # implementation here
    ...

# register your extension
# you can use the priority value to make sure your kernel will be loaded by default
CPUAdamLoader.register_extension(MyExtension)

# load the kernel
kernel = CPUAdamLoader().load()
"""

# What stands for "implementation here": the names of the README's last section, the older ones.
IMPLEMENTATION = """
    def is_hardware_available(self) -> bool:
        return True

    def assert_hardware_compatible(self) -> None:
        pass

    def build_aot(self):
        raise NotImplementedError

    def build_jit(self):
        return self.load()

    def load(self):
        return "my kernel"
"""


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    """The public loader as it was."""
    from precast.kernel_loader import CPUAdamLoader

    before = list(CPUAdamLoader.REGISTRY)
    yield
    CPUAdamLoader.REGISTRY[:] = before
    CPUAdamLoader._memory.clear()


def run(code: str) -> Any:
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - three texts of this file
    return names["kernel"]


@pytest.mark.torch
@pytest.mark.compiler
def test_case_1_simply_load_a_kernel() -> None:
    kernel = run(CASE_1)
    assert isinstance(kernel, KernelModule) and kernel.source.kind in ("prebuilt", "cache", "jit")
    assert callable(kernel.CPUAdamOptimizer(1e-3, 0.9, 0.999, 1e-8, 0.0, True).step)


@pytest.mark.torch
@pytest.mark.compiler
def test_case_2_load_a_specific_kernel() -> None:
    if platform.machine() == "aarch64":
        assert run(CASE_2).CPUAdamOptimizer
        return
    with pytest.raises(KernelUnavailable, match="it is for aarch64 machines"):
        run(CASE_2)
    assert run(CASE_2.replace("cpu_adam_arm", "cpu_adam_x86")).CPUAdamOptimizer


@pytest.mark.torch
@pytest.mark.compiler
def test_case_3_register_your_own_extension() -> None:
    from precast.kernel_loader import CPUAdamLoader

    before = run(CASE_1)
    written = CASE_3.replace("    ...\n", IMPLEMENTATION)
    assert written != CASE_3 and run(written) == "my kernel", "its priority is higher"
    assert "my_extension" in CPUAdamLoader.names()
    CPUAdamLoader.unregister_extension("my_extension")
    assert run(CASE_1) != "my kernel" and run(CASE_1).CPUAdamOptimizer is before.CPUAdamOptimizer


def test_the_class_without_an_implementation_is_refused() -> None:
    with pytest.raises(TypeError, match="MyExtension does not define assert_compatible, build_aot, build_jit, "):
        run(CASE_3)
