"""Lists of GPUs to build for, as PRECAST_CUDA_ARCH_LIST and TORCH_CUDA_ARCH_LIST have them."""

from __future__ import annotations

import re
from typing import cast

from precast.core.capability import ComputeCapability, GpuTarget, Suffix, TargetKind

_ARCH_ITEM = r"(?:(sm|compute)_)?([1-9][0-9]?)\.?([0-9])([af]?)(\+PTX)?"

# torch.utils.cpp_extension accepts these names in TORCH_CUDA_ARCH_LIST as well as numbers.
_NAMED_ARCHS = {
    "volta": "7.0+PTX",
    "turing": "7.5+PTX",
    "ampere": "8.0;8.6+PTX",
    "ada": "8.9+PTX",
    "hopper": "9.0+PTX",
}


def parse_arch_list(text: str) -> tuple[GpuTarget, ...]:
    """Read a list of GPUs to build for: ``"8.0;9.0+PTX"``, ``"sm_90 compute_90"``, ``"90,80"``.

    Items are separated by semicolons, commas or spaces; ``+PTX`` adds the PTX of that item; duplicates count once.
    Raises ValueError with the name of a bad item.
    """
    found: dict[GpuTarget, None] = {}
    for item in re.split(r"[;,\s]+", text.strip()):
        if not item:
            continue
        named = _NAMED_ARCHS.get(item.lower())
        targets = parse_arch_list(named) if named else _parse_arch_item(item)
        found.update(dict.fromkeys(targets))
    return tuple(found)


def _parse_arch_item(item: str) -> tuple[GpuTarget, ...]:
    match = re.fullmatch(_ARCH_ITEM, item, re.IGNORECASE)
    if match is None:
        raise ValueError(
            f"not a GPU architecture: {item!r}; needed one such as '9.0', '9.0+PTX', '90', 'sm_90', 'compute_90'"
        )
    prefix, major, minor, suffix, with_ptx = match.groups()
    capability = ComputeCapability(int(major), int(minor))
    letter = cast("Suffix", suffix.lower())
    first = GpuTarget(TargetKind((prefix or "sm").lower()), capability, letter)
    return (first, GpuTarget(TargetKind.PTX, capability, letter)) if with_ptx else (first,)
