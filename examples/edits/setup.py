"""One library for every torch from 2.10 on and for every Python."""

from setuptools import setup

from precast.build import BuildExtension, StableExtension, ext_modules

CSRC = "src/edits/csrc"

setup(
    ext_modules=ext_modules(
        StableExtension("edits.kernels", [f"{CSRC}/ops.cpp"], depends=[f"{CSRC}/distance.h"]),
    ),
    cmdclass={"build_ext": BuildExtension},
)
