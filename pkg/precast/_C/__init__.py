"""What is prebuilt, by the names it was always imported by: ``from precast._C import cpu_adam_x86``.

Each name gives the very object that its loader gives. The files beside this one are not Python modules: the loader
checks them against ``build_info.json`` before it opens any.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from precast import kernel_loader
    from precast.errors import KernelError

    loader = kernel_loader.home_of(name)
    if loader is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")
    try:
        kernel_loader.assert_not_pure()
        return loader().load(ext_name=name)
    except KernelError as error:
        raise ImportError(f"cannot import {name!r} from {__name__!r}: {error}", name=__name__) from error


def __dir__() -> list[str]:
    from precast import kernel_loader

    return sorted({name for loader in kernel_loader.loaders() for name in kernel_loader.shipped_names(loader)})
