"""Build wheels with your own kernels. A ``setup.py`` imports this package, and so do the modules of its wheel.

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

The compiled files go to ``blog_ops/_C``, with a manifest ``build_info.json`` in the same schema as precast's own. A
guard takes the place of each module. So ``from blog_ops import fused`` first checks that the library fits this Python,
torch, CUDA and C library, and raises KernelIncompatible with the reasons if it does not. An extension on the stable
ABI registers its ops for ``torch.ops``; any other module exports its functions to Python.

A wheel with only stable libraries and device code is tagged ``py3-none``; one with a module for one Python, ``cp311``.
``python -m precast.build --audit WHEEL`` checks a finished wheel against its manifest, and
``python -m precast.build --cflags --ldflags --include --cuda-flags`` prints the same options for a Makefile.

Signatures::

    ext_modules(*extensions) -> list[setuptools.Extension]
        takes extensions of setuptools, torch and precast, and objects with build_aot(), as in precast.extension
    StableExtension(name, sources, *, floor="2.10", include_dirs=(), define_macros=(), extra_compile_args=(),
                    extra_link_args=())
    DeviceExtension(name, sources, *, targets=(), include_dirs=(), defines={}, instances={}, flags=(), ops={})
    labelled(version, extensions) -> "1.0+cu130.torch2.13", or the plain version if one wheel serves every torch
    guard(module): called by guard modules; load_library(package, name) does the same without a guard module
    answer(): called by the package of a guarded wheel, so that torch.ops.load_library opens what is behind a guard
    editable(module, file, root, sources): called by the modules of an editable install, warns if a source is newer
    launcher(module, entries, ops): called by the module that is made of a DeviceExtension
    images(package, name) -> {GPU index: Image} of a DeviceExtension, for the visible GPUs
"""

TYPE_CHECKING = False  # no typing import, as in precast itself: ``python -m precast.build`` runs this file first
if TYPE_CHECKING:
    from typing import Any

    from precast._cubin.launcher import launcher
    from precast._load.answers import answer
    from precast._load.downstream import guard, images, load_library
    from precast._load.edited import editable
    from precast.build.command import BuildExtension
    from precast.build.extensions import DeviceExtension, StableExtension, ext_modules, labelled

__all__ = [
    "BuildExtension",
    "DeviceExtension",
    "StableExtension",
    "answer",
    "editable",
    "ext_modules",
    "guard",
    "images",
    "labelled",
    "launcher",
    "load_library",
]

# Imported on first use: a guard at run time needs no setuptools.
_HOMES = {
    "BuildExtension": "precast.build.command",
    "DeviceExtension": "precast.build.extensions",
    "StableExtension": "precast.build.extensions",
    "ext_modules": "precast.build.extensions",
    "answer": "precast._load.answers",
    "editable": "precast._load.edited",
    "labelled": "precast.build.extensions",
    "guard": "precast._load.downstream",
    "launcher": "precast._cubin.launcher",
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
