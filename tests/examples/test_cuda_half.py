"""The CUDA half of the examples compiles: device code by nvcc, host code against the headers of a CUDA torch."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path

import pytest

from precast._builder import torch_wheel
from tests.kit import spawn

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.nvcc, pytest.mark.torch, pytest.mark.compiler]

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGE_OPS = EXAMPLES / "image_ops" / "src" / "image_ops" / "csrc"
DEVICE = sorted([*IMAGE_OPS.glob("*.cu"), *(EXAMPLES / "rowstats" / "csrc").glob("*.cu")])
# What a CUDA build of torch has in its include folder, and a CPU build has not.
ONLY_CUDA = "c10/cuda/impl/cuda_cmake_macros.h"
# As torch's own CUDAExtension compiles: without the implicit conversions of half types.
OF_TORCH = [f"-D__CUDA_NO_{what}__" for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS")]


def nvcc() -> Path:
    return Path(shutil.which("nvcc", path="/usr/local/cuda/bin") or shutil.which("nvcc") or "nvcc")


@pytest.mark.parametrize("source", DEVICE, ids=lambda path: path.stem)
def test_device_code(source: Path, tmp_path: Path) -> None:
    command = [nvcc(), "-std=c++17", "-O3", "-DWITH_CUDA", "-Werror", "all-warnings", "-Xptxas", "-v", *OF_TORCH]
    command += ["--expt-relaxed-constexpr", "-gencode", "arch=compute_90,code=sm_90", "-c", source]
    done = spawn.run(*command, "-o", tmp_path / "out.o")
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert spills and set(spills) == {"0"}


@pytest.fixture(scope="module")
def cuda_headers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The include folders of a CUDA build of this release: of this torch, or with what the index's wheel has more."""
    here = Path(torch.__file__).parent / "include"
    if (here / ONLY_CUDA).is_file():
        return [here]
    more = tmp_path_factory.mktemp("cuda-headers")
    path = more / ONLY_CUDA
    path.parent.mkdir(parents=True)
    release = torch.__version__.partition("+")[0]
    with torch_wheel.opened(torch_wheel.find_wheel(release)) as wheel:
        path.write_bytes(wheel.read(f"torch/include/{ONLY_CUDA}"))
    return [more, here]


@pytest.mark.headers
@pytest.mark.parametrize("module", ["fused_bias_act"])
def test_host_code(module: str, cuda_headers: list[Path]) -> None:
    folders = [*cuda_headers, nvcc().resolve().parents[1] / "include", Path(sysconfig.get_path("include"))]
    command = ["g++", "-std=c++17", "-fsyntax-only", "-fopenmp", "-DWITH_CUDA", f"-DTORCH_EXTENSION_NAME={module}"]
    command += [option for folder in folders for option in ("-isystem", str(folder))]
    spawn.run(*command, "-Wall", "-Wextra", "-Werror", IMAGE_OPS / f"{module}.cpp")  # fails if it does not compile
