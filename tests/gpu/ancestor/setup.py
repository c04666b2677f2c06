"""The ancestor's first method: the kernels are built while installing, by CUDAExtension."""

import os

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="ancestor-rms-norm",
    ext_modules=[CUDAExtension("ancestor_rms_norm", ["binding.cu"], include_dirs=[os.environ["CSRC"]])],
    cmdclass={"build_ext": BuildExtension},
)
