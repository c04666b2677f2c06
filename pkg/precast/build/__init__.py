"""Build wheels with your own kernels. A ``setup.py`` imports this package, and so do the modules of its wheel.

::

    from setuptools import setup
    from torch.utils.cpp_extension import CUDAExtension
    from precast.build import BuildExtension, DeviceExtension, StableExtension, ext_modules

    setup(
        name="blog-ops",
        packages=["blog_ops"],
        install_requires=["precast"],  # for the DeviceExtension
        ext_modules=ext_modules(
            CUDAExtension("blog_ops.fused", ["csrc/fused.cpp", "csrc/fused.cu"]),  # for this Python, torch and CUDA
            StableExtension("blog_ops.scale", ["csrc/scale.cpp"]),  # C++ on the stable ABI: for every torch >= 2.10
            DeviceExtension("blog_ops.bias", "csrc/bias.cu"),  # device code as data, by NVRTC: for every torch
        ),
        cmdclass={"build_ext": BuildExtension},
    )

The compiled files go to ``blog_ops/_C``, with a manifest ``build_info.json`` in the schema of precast's own manifest. A
small Python file, the guard, replaces each module, and a copy of precast's checks is ``blog_ops/_precast``. So ``from
blog_ops import fused`` first checks that the library fits this Python, torch, CUDA and C library. If the library does
not fit, the import raises an ImportError with the reasons. An extension on the stable ABI registers its ops for
``torch.ops``; any other module exports its functions. Only a DeviceExtension needs precast where it is installed.

A wheel with only stable libraries and device code gets the tag ``py3-none``; one with a module for one Python gets
``cp311``.
``python -m precast.build --audit WHEEL`` checks a finished wheel against its manifest, and
``python -m precast.build --cflags --ldflags --include --cuda-flags`` prints the same options for a Makefile.

Signatures::

    ext_modules(*extensions) -> list[setuptools.Extension]
        takes extensions of setuptools, torch and precast, and objects with build_aot(), as in precast.extension
    StableExtension(name, sources, *, floor="2.10", include_dirs=(), define_macros=(), extra_compile_args=(),
                    extra_link_args=())
    DeviceExtension(name, sources, *, targets=(), include_dirs=(), defines={}, instances={}, flags=(), ops={})
    labelled(version, extensions) -> "1.0+cu130.torch2.13", or the plain version if one wheel serves every torch
    load_library(package, name): does what a guard does, without a guard module
    guard(module), answer(), editable(...): called by wheels of earlier versions, which have no copy of the checks
    launcher(module, entries, ops): called by the module that a DeviceExtension becomes
    images(package, name) -> {GPU index: Image} of a DeviceExtension, for the visible GPUs
"""

TYPE_CHECKING = False  # no typing import, as in precast itself: ``python -m precast.build`` runs this file first
if TYPE_CHECKING:
    from typing import Any

    from precast._cubin.launcher import launcher
    from precast._load.images import images
    from precast.build.command import BuildExtension
    from precast.build.extensions import StableExtension, ext_modules, labelled
    from precast.core.edited import editable
    from precast.core.opening import guard, load_library
    from precast.core.patching import patch_loader as answer
    from precast.extension.device import DeviceExtension

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
    "DeviceExtension": "precast.extension.device",
    "StableExtension": "precast.build.extensions",
    "ext_modules": "precast.build.extensions",
    "answer": "precast.core.patching",
    "editable": "precast.core.edited",
    "labelled": "precast.build.extensions",
    "guard": "precast.core.opening",
    "launcher": "precast._cubin.launcher",
    "images": "precast._load.images",
    "load_library": "precast.core.opening",
}
_NAMES = {"answer": "patch_loader"}  # of wheels that were guarded before they took a core along


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), _NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)
