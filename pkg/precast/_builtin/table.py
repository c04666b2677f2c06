"""The extensions that come with the package: one table of rows, and a class for each.

A row says which loader an extension belongs to, its name, what it is made of, and the members of what it loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

from precast._builder import catalogue
from precast._builder.catalogue import Family
from precast._builtin import flash_attention, public
from precast._builtin.families import (
    DeviceExtension,
    FamilyExtension,
    HostExtension,
    ReferenceExtension,
    UnwrittenExtension,
)
from precast._builtin.twins import TwinExtension
from precast.compat import inference
from precast.compat import modules as compat
from precast.compat.modules import Find, Members
from precast.extension.base import Extension
from precast.extension.torch_reference import LOWEST

Builtin: TypeAlias = (
    type[HostExtension]
    | type[DeviceExtension]
    | type[TwinExtension]
    | type[ReferenceExtension]
    | type[UnwrittenExtension]
)
_AFTER_A_TWIN = -1  # where a GPU has only Triton kernels, those come before the CPU's


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One extension. ``machine`` is as platform.machine() says it, None for any."""

    loader: str
    name: str
    kind: Builtin
    families: tuple[Family, ...] = ()
    members: Callable[[Find], Members] | None = None
    machine: str | None = None
    place: int = 1  # its priority


def _merged(*parts: Callable[[Find], Members]) -> Callable[[Find], Members]:
    return lambda find: {name: member for part in parts for name, member in part(find).items()}


def _four(loader: str, stem: str, families: tuple[Family, ...], *members: Callable[[Find], Members]) -> tuple[Row, ...]:
    """The kernels on the GPU, their Triton twins where there are any, the kernels on the CPU, and plain torch."""
    kinds: tuple[tuple[str, Builtin, int], ...] = (
        ("cuda", DeviceExtension, 1),
        ("triton", TwinExtension, 0),
        ("cpu", HostExtension, _AFTER_A_TWIN),
        ("torch", ReferenceExtension, LOWEST),
    )
    made = _merged(*members)
    has_twins = all(family.twins for family in families)
    return tuple(
        Row(loader, f"{stem}_{suffix}", kind, families, made, place=place)
        for suffix, kind, place in kinds
        if has_twins or kind is not TwinExtension
    )


_ADAM = (catalogue.get("cpu_adam"), catalogue.get("cpu_optim"))
_RMS_NORM = (catalogue.get("rms_norm"), catalogue.get("rms_norm_backward"))
_LAYER_NORM = (catalogue.get("layer_norm"), catalogue.get("layer_norm_backward"))
_ACTIVATIONS = (catalogue.get("activations"), catalogue.get("activations_backward"))
_SOFTMAX = (catalogue.get("softmax"), catalogue.get("softmax_backward"))
_ROTARY = (catalogue.get("rotary"),)
_KV_CACHE = (catalogue.get("kv_cache"), catalogue.get("decode_attention"))
_LISTS = (catalogue.get("multi_tensor"),)
_INFERENCE = (catalogue.get("rms_norm"), catalogue.get("activations"))
_CAUSAL = "scaled_upper_triangle_masked_softmax"

TABLE: tuple[Row, ...] = (
    Row("CPUAdamLoader", "cpu_adam_x86", HostExtension, _ADAM, compat.adam, machine="x86_64"),
    Row("CPUAdamLoader", "cpu_adam_arm", HostExtension, _ADAM, compat.adam, machine="aarch64"),
    Row("CPUAdamLoader", "cpu_adam_torch", ReferenceExtension, _ADAM, compat.adam, place=LOWEST),
    *_four("RMSNormLoader", "rms_norm", _RMS_NORM, compat.norms),
    *_four("LayerNormLoader", "layer_norm", _LAYER_NORM, public.layer_norm, compat.layer_norm),
    *_four("ActivationsLoader", "activations", _ACTIVATIONS, public.activations),
    *_four("SoftmaxLoader", "softmax", _SOFTMAX, public.softmax),
    *_four("RotaryLoader", "rotary", _ROTARY, public.rotary),
    *_four("KVCacheLoader", "kv_cache", _KV_CACHE, public.kv_cache),
    # The modules of the loader that this one stands in for, with its functions.
    *_four("ScaledMaskedSoftmaxLoader", "scaled_masked_softmax", _SOFTMAX, compat.masked_softmax),
    *_four("ScaledUpperTriangleMaskedSoftmaxLoader", _CAUSAL, _SOFTMAX, compat.causal_softmax),
    *_four("InferenceOpsLoader", "inference_ops", _INFERENCE, inference.members),
    Row("MoeLoader", "moe_cuda", UnwrittenExtension, place=0),
    Row("FusedOptimizerLoader", "fused_optim_cuda", DeviceExtension, _LISTS, compat.multi_tensor),
    Row("FusedOptimizerLoader", "fused_optim_triton", TwinExtension, _LISTS, compat.multi_tensor, place=0),
    Row("FusedOptimizerLoader", "fused_optim_torch", ReferenceExtension, _LISTS, compat.multi_tensor, place=LOWEST),
)


def _make(row: Row) -> Builtin:
    """The class of a row."""
    find = compat.reference if issubclass(row.kind, ReferenceExtension) else compat.kernel
    words = "".join(part.title() for part in row.name.split("_"))
    attributes = {
        "__module__": __name__,
        "__doc__": f"{row.name}, of {row.loader}.",
        "extension_name": row.name,
        "families": row.families,
        "machine": row.machine,
        "place": row.place,
        "members": row.members(find) if row.members is not None else {},
    }
    made: Builtin = type(f"{words}Extension", (row.kind,), attributes)
    return made


BUILTIN: tuple[Builtin, ...] = tuple(_make(row) for row in TABLE)


def get(name: str) -> Builtin:
    """The class of the extension of this name; KeyError if it is none of ours."""
    return {extension.extension_name: extension for extension in BUILTIN}[name]


def of(loader: str) -> list[type[Extension]]:
    """What a loader begins with, in the order of the table."""
    ours: list[type[Extension]] = [cls for row, cls in zip(TABLE, BUILTIN, strict=True) if row.loader == loader]
    return ours + flash_attention.of(loader)


def names_of(loader: str) -> list[str]:
    """The names of what a loader begins with."""
    rows = [row.name for row in TABLE if row.loader == loader]
    return rows + [cls.extension_name for cls in flash_attention.ALL if loader in cls.loaders]


def main_rows() -> tuple[type[FamilyExtension], ...]:
    """Of the extensions that have kernels those of the first loader for their families: each kernel once."""
    seen: set[tuple[str, str, str | None]] = set()
    found: list[type[FamilyExtension]] = []
    for cls in BUILTIN:
        key = (cls.device, "+".join(family.name for family in cls.families), cls.machine)
        if not issubclass(cls, FamilyExtension) or key in seen or cls.families == _INFERENCE:
            continue
        seen.add(key)
        found.append(cls)
    return tuple(found)
