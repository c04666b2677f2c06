"""The kinds of accelerators that torch sees here, found without creating a context on any."""

from __future__ import annotations

import importlib.util

from precast._load import probe, verdict


def gpu_kinds() -> frozenset[str]:
    """Those of "cuda", "rocm" and "xpu" that torch can use here."""
    torch_info = probe.probe_host(probe.read_settings(), gpus=False).torch
    if torch_info is None:
        return frozenset()
    import torch

    kinds = set()
    if verdict.sees_cuda_gpu():
        kinds.add("cuda")
    if torch_info.hip is not None and torch.cuda.is_available():
        kinds.add("rocm")
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available():
        kinds.add("xpu")
    return frozenset(kinds)


def has_other_accelerator() -> bool:
    """Whether torch can use an accelerator here other than an NVIDIA GPU."""
    if gpu_kinds() & {"rocm", "xpu"}:
        return True
    return has_package("torch_npu")


def has_package(name: str) -> bool:
    """Whether a package is installed. Does not import it."""
    return importlib.util.find_spec(name) is not None
