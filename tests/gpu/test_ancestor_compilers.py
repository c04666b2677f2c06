"""nvcc through both of the ancestor's methods gives bitwise the numbers of the shipped (NVRTC) device code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.gpu, pytest.mark.compiler]

HERE = Path(__file__).parent / "ancestor"
CSRC = Path(__file__).parents[2] / "csrc"

# Rows that the launch table of csrc/norm/rms_norm.cpp gives to the kernel the binding launches, a block for each. They
# are many, because few would get more threads.
ROWS = 4099
SHAPES = ((4096, torch.bfloat16), (8192, torch.bfloat16), (4096, torch.float16), (2048, torch.float32))


def by_setup(folder: Path) -> ModuleType:
    """`python setup.py build_ext --inplace` with CUDAExtension, and the module it made."""
    shutil.copytree(HERE, folder, dirs_exist_ok=True)
    env = os.environ | {"CSRC": str(CSRC), "TORCH_CUDA_ARCH_LIST": device_arch()}
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, env=env, check=True)
    (built,) = folder.glob("ancestor_rms_norm*.so")
    spec = importlib.util.spec_from_file_location("ancestor_rms_norm", built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_load(folder: Path) -> ModuleType:
    """`torch.utils.cpp_extension.load` of the same source."""
    from torch.utils import cpp_extension

    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", device_arch())
    return cpp_extension.load(
        "ancestor_rms_norm_jit",
        [str(HERE / "binding.cu")],
        extra_include_paths=[str(CSRC)],
        build_directory=str(folder),
    )


def device_arch() -> str:
    return "{}.{}".format(*torch.cuda.get_device_capability())


@pytest.mark.parametrize("build", [by_setup, by_load])
def test_same_numbers(build: Callable[[Path], ModuleType], tmp_path: Path) -> None:
    import precast.ops

    ancestor = build(tmp_path)
    torch.manual_seed(3)
    for hidden, dtype in SHAPES:
        x = torch.randn(ROWS, hidden, device="cuda", dtype=dtype)
        weight = torch.randn(hidden, device="cuda", dtype=dtype)
        ours, theirs = precast.ops.rms_norm(x, weight), ancestor.rms_norm(x, weight, 1e-6)
        assert torch.equal(ours, theirs), f"{dtype}, hidden {hidden}: {(ours - theirs).abs().max().item()} apart"
