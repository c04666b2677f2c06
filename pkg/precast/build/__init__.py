"""Matrix-ready wheels for everybody's kernels: what a ``setup.py`` imports, and what its wheel asks at run time.

::

    from setuptools import setup
    from torch.utils.cpp_extension import CUDAExtension
    from precast.build import BuildExtension, StableExtension, ext_modules

    setup(
        name="blog-ops",
        packages=["blog_ops"],
        install_requires=["precast"],
        ext_modules=ext_modules(
            CUDAExtension("blog_ops.fused", ["csrc/fused.cpp", "csrc/fused.cu"]),  # for this Python, torch and CUDA
            StableExtension("blog_ops.scale", ["csrc/scale.cpp"]),  # C++ on the stable ABI: for every torch >= 2.10
            DeviceExtension("blog_ops.bias", "csrc/bias.cu"),  # device code as data, by NVRTC: for every torch
        ),
        cmdclass={"build_ext": BuildExtension},
    )

What is compiled lies in ``blog_ops/_C`` with the manifest ``build_info.json``, of the schema of precast's own. In the
place of each module lies a guard, so that ``from blog_ops import fused`` first proves that the library fits this
Python, torch, CUDA and C library, and raises KernelIncompatible with the reasons where it does not. An extension on
the stable ABI registers its ops for ``torch.ops``; a module that Python imports has its functions.

A wheel of stable libraries and device code alone is tagged ``py3-none``; one with a module for one Python, ``cp311``.
``python -m precast.build --audit WHEEL`` holds a finished wheel against its manifest, and
``python -m precast.build --cflags --ldflags --include --cuda-flags`` prints the same options for a Makefile.

Signatures::

    ext_modules(*extensions) -> list[setuptools.Extension]
        setuptools', torch's and our extensions, and what has build_aot(), such as a class of precast.extension
    StableExtension(name, sources, *, floor="2.10", include_dirs=(), define_macros=(), extra_compile_args=(),
                    extra_link_args=())
    DeviceExtension(name, source, *, targets=(), include_dirs=(), defines={})
    labelled(version, extensions) -> "1.0+cu130.torch2.13", or the version alone where one wheel serves every torch
    guard(module) -> what a guard calls; load_library(package, name), the same without a guard module
    images(package, name) -> {GPU index: Image} of a DeviceExtension, for the GPUs that are visible
"""

TYPE_CHECKING = False  # as in precast itself: ``python -m precast.build`` comes through here before its first line
if TYPE_CHECKING:
    from typing import Any

    from precast._load.downstream import guard, images, load_library
    from precast.build.command import BuildExtension
    from precast.build.extensions import DeviceExtension, StableExtension, ext_modules, labelled

__all__ = [
    "BuildExtension",
    "DeviceExtension",
    "StableExtension",
    "ext_modules",
    "guard",
    "images",
    "labelled",
    "load_library",
]

# Loaded when they are asked for: a guard at run time needs no setuptools.
_HOMES = {
    "BuildExtension": "precast.build.command",
    "DeviceExtension": "precast.build.extensions",
    "StableExtension": "precast.build.extensions",
    "ext_modules": "precast.build.extensions",
    "labelled": "precast.build.extensions",
    "guard": "precast._load.downstream",
    "images": "precast._load.downstream",
    "load_library": "precast._load.downstream",
}


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
