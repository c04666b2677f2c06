"""What is prebuilt, by the names it was always imported by: ``from precast._C import cpu_adam_x86``.

Each name gives the very object that its loader gives. The files beside this one are not Python modules: the loader
checks them against ``build_info.json`` before it opens any.
"""

from __future__ import annotations

from typing import Any

_LOADERS = {
    "cpu_adam_x86": "CPUAdamLoader",
    "cpu_adam_arm": "CPUAdamLoader",
    "rms_norm_cuda": "RMSNormLoader",
    "rms_norm_cpu": "RMSNormLoader",
    "layer_norm_cuda": "LayerNormLoader",
    "layer_norm_cpu": "LayerNormLoader",
    "activations_cuda": "ActivationsLoader",
    "activations_cpu": "ActivationsLoader",
    "softmax_cuda": "SoftmaxLoader",
    "softmax_cpu": "SoftmaxLoader",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_LOADERS)}")
    from precast import kernel_loader
    from precast.errors import KernelError

    try:
        kernel_loader.assert_not_pure()
        return getattr(kernel_loader, _LOADERS[name])().load(ext_name=name)
    except KernelError as error:
        raise ImportError(f"cannot import {name!r} from {__name__!r}: {error}", name=__name__) from error


def __dir__() -> list[str]:
    return sorted(_LOADERS)
