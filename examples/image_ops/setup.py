"""Compiles the kernels while installing if CUDA_EXT=1; else they are compiled when first used."""

import os
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "src" / "image_ops"))  # the build backend keeps the project off the path

import _sources  # noqa: E402


def extension(name):
    from torch.utils.cpp_extension import CppExtension, CUDAExtension

    cuda = _sources.with_cuda()
    folder = _sources.CSRC.relative_to(HERE)
    sources = [str(folder / source) for source in _sources.sources(name, cuda)]
    flags = [*_sources.CXX_FLAGS, *(_sources.CUDA_FLAGS if cuda else [])]
    if not cuda:
        return CppExtension(f"image_ops.compiled.{name}", sources, extra_compile_args=flags)
    arguments = {"cxx": flags, "nvcc": ["-O3", *_sources.CUDA_FLAGS]}
    return CUDAExtension(f"image_ops.compiled.{name}", sources, extra_compile_args=arguments)


if os.environ.get("CUDA_EXT") == "1":
    from precast.build import BuildExtension, ext_modules

    compiled = ext_modules(*map(extension, _sources.MODULES))
    setup(ext_modules=compiled, cmdclass={"build_ext": BuildExtension})
else:
    setup()
