"""The compiled modules: what was built while installing, else ``torch.utils.cpp_extension.load``."""

import functools
import importlib
import importlib.util
import warnings
from types import ModuleType

from image_ops import _sources
from precast.errors import KernelIncompatible


@functools.cache
def kernel(name: str) -> ModuleType:
    """A compiled module by name, the same object each time."""
    built = f"{__name__}.{name}"
    if importlib.util.find_spec(built) is None:
        return build(name)
    try:
        return importlib.import_module(built)
    except KernelIncompatible as refusal:  # made for another torch, Python or CUDA, or by another precast
        warnings.warn(f"{name} is compiled again: {refusal}", RuntimeWarning, stacklevel=2)
        return build(name)


def build(name: str) -> ModuleType:
    """Compile and load a module in torch's folder for extensions; what an earlier process left there is taken."""
    from torch.utils.cpp_extension import load

    cuda = _sources.with_cuda()
    more = _sources.CUDA_FLAGS if cuda else []
    module: ModuleType = load(
        name=name,
        sources=[str(_sources.CSRC / source) for source in _sources.sources(name, cuda)],
        extra_cflags=[*_sources.CXX_FLAGS, *more],
        extra_cuda_cflags=["-O3", *more],
        with_cuda=cuda,
    )
    return module
