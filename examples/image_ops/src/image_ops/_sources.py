"""What is compiled, and how: read by setup.py while installing, and at run time."""

from pathlib import Path

CSRC = Path(__file__).resolve().parent / "csrc"
MODULES = {"fused": "fused_bias_act"}  # to the first word of their files

# OpenMP is not given to the linker: torch brings the library that its threads are in. Nobody here asks for the traps of
# floating point, and without them compilers vectorize a choice between two numbers.
CXX_FLAGS = ["-O3", "-fno-trapping-math", "-fopenmp"]
CUDA_FLAGS = ["-DWITH_CUDA"]  # for both compilers


def with_cuda() -> bool:
    """Whether this torch and this machine can compile for CUDA."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    return torch.version.cuda is not None and CUDA_HOME is not None


def sources(module: str, cuda: bool) -> list[str]:
    """The sources of a module, relative to ``CSRC``."""
    stem = MODULES[module]
    return [f"{stem}.cpp", f"{stem}_cuda.cu"] if cuda else [f"{stem}.cpp"]
