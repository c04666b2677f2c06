"""The module-like object and the functions in it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from precast._load.source import Source
from precast.compat.adam import CPUAdamOptimizer
from precast.extension.module import KernelModule

SOURCE = Source("prebuilt", Path("/site/precast/_C/host/x.so"), "torch-table-1")


def test_a_kernel_module_is_used_like_a_module() -> None:
    module = KernelModule("cpu_adam_x86", {"step": len}, SOURCE)
    assert module.__name__ == "cpu_adam_x86" and module.step is len and module.source is SOURCE
    assert {"step", "source", "images"} <= set(dir(module))
    assert repr(module) == "<kernel module 'cpu_adam_x86' from prebuilt /site/precast/_C/host/x.so (torch-table-1)>"
    with pytest.raises(AttributeError, match="'cpu_adam_x86' has no 'setp'; it has step"):
        _ = module.setp


def test_a_kernel_module_survives_copying_and_pickling() -> None:
    module = KernelModule("m", {"size": len}, SOURCE)
    for other in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.size("abc") == 3 and other.source == SOURCE


@pytest.mark.torch
def test_the_older_optimizer_refuses_a_step_before_the_first() -> None:
    import torch

    tensor = torch.ones(1)
    with pytest.raises(ValueError, match="step is 0; needed 1 or more"):
        CPUAdamOptimizer().step(0, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, tensor, tensor, tensor, tensor)
