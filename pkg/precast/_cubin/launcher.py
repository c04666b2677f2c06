"""The module that a build writes for a DeviceExtension: its kernels as attributes, and the ops that it declares.

An op is defined when the module is imported, on any machine, so that graphs know it. The images are chosen at the
first call with a CUDA tensor, by the decision that chooses all prebuilt files.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from precast._cubin import images, launch
from precast._cubin.images import Entry, Image, Usage
from precast._load import images as of_package
from precast.core.version import CudaVersion

Plain = Mapping[str, Mapping[str, Sequence[Any]]]


def family_of(name: str, stem: str, sources: int) -> str:
    """The name in the manifest of the images of one source: that of the extension, unless it has several sources."""
    return name if sources == 1 else f"{name}__{stem}"


def plain(made: Mapping[Any, Image]) -> dict[str, list[Any]]:
    """The entry points of one source as plain data, with what ptxas says for each target."""
    found: dict[str, list[Any]] = {}
    for target, image in made.items():
        for name, entry in image.entries.items():
            _, _, used = found.setdefault(name, [entry.symbol, list(entry.parameters), {}])
            if entry.usage is not None:
                used[str(target)] = images.numbers(entry.usage)
    return found


def launcher(module: str, entries: Plain, ops: Sequence[Mapping[str, Any]]) -> None:
    """Give a module its kernels and ops. The module passes its ``__name__``, and what the build knows."""
    members = vars(sys.modules[module])
    loaded = functools.cache(lambda: launch.kernels(module, shipped(module)))

    def attribute(name: str) -> Any:
        if name in {kernel for family in entries.values() for kernel in family}:
            return loaded()[name]
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    members.update(entries=entries, __getattr__=attribute)
    if ops:
        members["library"] = _define(module.partition(".")[0], ops, loaded)


def shipped(module: str) -> dict[int, tuple[Image, ...]]:
    """For each GPU that has all of them, the images of a module that a build wrote.

    ModuleNotFoundError if there is none. PrebuiltRefused if no GPU can run the images of one source.
    """
    entries: Plain = vars(importlib.import_module(module))["entries"]
    package, _, name = module.rpartition(".")
    found = []
    for family, facts in entries.items():
        by_gpu = of_package.images(package, family)
        source = family.removeprefix(f"{name}__")
        found.append({gpu: _image(source, one, facts) for gpu, one in by_gpu.items()})
    whole = set[int].intersection(*(set(by_gpu) for by_gpu in found))
    return {gpu: tuple(by_gpu[gpu] for by_gpu in found) for gpu in sorted(whole)}


def _image(source: str, one: of_package.Image, facts: Mapping[str, Sequence[Any]]) -> Image:
    target = str(one.target)
    entries = {
        name: Entry(symbol, tuple(parameters), Usage(*used[target]) if target in used else None)
        for name, (symbol, parameters, used) in facts.items()
    }
    return Image(source, one.target, CudaVersion.parse(one.nvrtc), entries, one.content)


def _define(namespace: str, ops: Sequence[Mapping[str, Any]], loaded: Callable[[], Mapping[str, Any]]) -> Any:
    """Define each op, with its fake, and with the launch for CUDA tensors. The library keeps them alive."""
    import torch

    library = torch.library.Library(namespace, "FRAGMENT")
    for op in ops:
        library.define(op["schema"], tags=[torch.Tag.pt2_compliant_tag])
        schema = getattr(getattr(torch.ops, namespace), op["name"]).default._schema
        fake = functools.partial(_call, op, schema, None)
        torch.library.register_fake(f"{namespace}::{op['name']}", fake, lib=library)
        library.impl(op["name"], functools.partial(_call, op, schema, loaded), "CUDA")
    return library


def _call(
    op: Mapping[str, Any], schema: Any, loaded: Callable[[], Mapping[str, Any]] | None, *given: Any, **named: Any
) -> Any:
    """Check the arguments of a call; launch the kernel, unless nothing is to be computed. Returns the result."""
    import torch

    values = {one.name: one.default_value for one in schema.arguments}
    values |= dict(zip(values, given, strict=False)) | named
    kernel = _kernel(op, values)
    result, first = None, values[op["tensors"][0]]
    if op["returns"]:
        dtype = getattr(torch, dict(kernel["parameters"])["out"])
        result = values["out"] = torch.empty_like(first, dtype=dtype, memory_format=torch.contiguous_format)
    if loaded is None:
        return result
    values |= {name: values[name].contiguous() for name in op["tensors"] if name not in op["written"]}
    values["n"] = (first if result is None else result).numel()
    values |= {f"{name}_size_{at}": size for name in op["tensors"] for at, size in enumerate(values[name].shape)}
    blocks = -(-values["n"] // kernel["threads"])
    if blocks:
        arguments = [values[name] for name, _ in kernel["parameters"]]
        loaded()[kernel["name"]]((blocks,), (kernel["threads"],), *arguments)
    return result


def _kernel(op: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The kernel for the dtypes of a call. RuntimeError for tensors that no kernel of the op can be given."""
    first, what = values[op["tensors"][0]], op["name"]
    for name in op["tensors"]:
        tensor = values[name]
        if tensor.device != first.device:
            raise RuntimeError(
                f"{what}: {name} is on {tensor.device}, and {op['tensors'][0]} on {first.device}; needed one device"
            )
        if name in op["written"] and not tensor.is_contiguous():
            raise RuntimeError(f"{what}: {name} must be contiguous, as it is written to")
    dtypes = {name: str(values[name].dtype).removeprefix("torch.") for name in op["tensors"]}
    for kernel in op["kernels"]:
        parameters = dict(kernel["parameters"])
        if all(parameters[name] == dtype for name, dtype in dtypes.items()):
            for name in op["tensors"]:
                if values[name].shape != first.shape and f"{name}_size_0" not in parameters:
                    shapes = f"{tuple(values[name].shape)}, and {op['tensors'][0]} {tuple(first.shape)}"
                    raise RuntimeError(f"{what}: {name} has the shape {shapes}; needed one shape")
            return dict(kernel)
    wanted = {name: sorted({dict(k["parameters"])[name] for k in op["kernels"]}) for name in dtypes}
    name = next((name for name, dtype in dtypes.items() if dtype not in wanted[name]), op["tensors"][0])
    raise RuntimeError(f"{what}: {name} must be {' or '.join(wanted[name])}, not {dtypes[name]}")
