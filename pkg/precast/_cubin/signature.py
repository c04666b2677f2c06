"""Read the ops that a DeviceExtension declares: schemas, and the parameters of the kernels that compute them.

A kernel's parameters have the names of the schema's arguments. ``out`` is the result, ``n`` the number of its elements,
and ``x_size_0`` a size of the tensor ``x``. The build holds both against each other, so a mistake never reaches a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precast.errors import KernelError

THREADS = 256  # of a block, unless the kernel has launch bounds
_SCHEMA = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\)\s*->\s*(?P<result>Tensor|\(\))")
_ARGUMENT = re.compile(r"(?P<type>Tensor(?P<written>\(\w!\))?|float|int|bool)\s+(?P<name>\w+)(\s*=.*)?")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?(?:void\s+)?{}\s*\(([^)]*)\)"
_PARAMETER = re.compile(
    r"(?P<const>const\s+)?(?P<type>[\w:]+(?:\s+(?:char|short|int|long))*)\s*(?P<pointer>\*?)\s*(?P<name>\w+)"
)
_DTYPES = {
    "float": "float32", "double": "float64", "__half": "float16", "half": "float16", "__nv_bfloat16": "bfloat16",
    "int": "int32", "int32_t": "int32", "int64_t": "int64", "long long": "int64", "int16_t": "int16", "short": "int16",
    "int8_t": "int8", "signed char": "int8", "uint8_t": "uint8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip
_NUMBERS = {
    "float": {"float", "double"},
    "int": {"int", "int32_t", "int64_t", "long long", "unsigned", "unsigned int", "uint32_t", "uint64_t", "size_t"},
    "bool": {"bool"},
}

Op = dict[str, Any]


def read(ops: Mapping[str, Sequence[str]], sources: Mapping[str, str]) -> list[Op]:
    """Each op as plain data: ``schema``, ``name``, ``tensors``, ``written``, ``returns`` and its ``kernels``.

    ``ops`` maps a schema to the names of its kernels, the first of which that takes the dtypes of a call computes it.
    KernelError for a schema that is not understood, and for a kernel that does not have its arguments.
    """
    texts = {where: _COMMENT.sub(" ", text) for where, text in sources.items()}
    return [_op(schema, kernels, texts) for schema, kernels in ops.items()]


def refuse_unknown(extension: str, ops: Iterable[Op], entries: set[str]) -> None:
    """Raise KernelError for a kernel that was not compiled under its own name."""
    for op in ops:
        for kernel in op["kernels"]:
            if kernel["name"] not in entries:
                found = f"the entry points {', '.join(sorted(entries))}"
                raise _bad(f"{op['name']} of {extension}", found, f'extern "C" __global__ void {kernel["name"]}(...)')


def _op(schema: str, kernels: Sequence[str], sources: Mapping[str, str]) -> Op:
    match = _SCHEMA.fullmatch(schema.strip())
    words = [word.strip() for word in match["arguments"].split(",")] if match else []
    parsed = [(word, _ARGUMENT.fullmatch(word)) for word in words if word not in ("", "*")]
    bad = next((word for word, found in parsed if found is None), None)
    if match is None or bad is not None:
        needed = "name(Tensor x, Tensor(a!) y, float f, int i, bool b) -> Tensor, or -> () for an op that writes"
        raise _bad(schema, f"the argument {bad!r}" if bad else "another form than name(arguments) -> result", needed)
    arguments = {found["name"]: found for _, found in parsed if found is not None}
    tensors = [name for name, found in arguments.items() if found["type"].startswith("Tensor")]
    written = [name for name, found in arguments.items() if found["written"]]
    returns = match["result"] == "Tensor"
    if not tensors or returns == bool(written) or not kernels:
        needed = "a tensor to compute from, a kernel, and either a result or an argument Tensor(a!) to write to"
        counts = f"{len(tensors)} tensors, {len(written)} of them to write to, and {len(kernels)} kernels"
        raise _bad(schema, f"{counts}, with {'a' if returns else 'no'} result", needed)
    op: Op = {"schema": schema, "name": match["name"], "tensors": tensors, "written": written, "returns": returns}
    types = {name: found["type"].partition("(")[0] for name, found in arguments.items()}
    return op | {"kernels": [_kernel(op, types, kernel, sources) for kernel in kernels]}


def _kernel(op: Op, types: Mapping[str, str], name: str, sources: Mapping[str, str]) -> Op:
    pattern = re.compile(_KERNEL.format(re.escape(name)))
    where, match = next(((where, m) for where, text in sources.items() if (m := pattern.search(text))), (None, None))
    if match is None:
        needed = f'extern "C" __global__ void {name}(...)'
        raise _bad(op["schema"], f"no kernel {name} in {', '.join(sources)}", needed)
    parameters = []
    for text in match[2].split(","):
        found = _PARAMETER.fullmatch(" ".join(text.replace("__restrict__", " ").split()))
        why = "not a plain pointer or number" if found is None else _why_not(op, types, found)
        if found is None or why:
            raise _bad(f"{op['name']} by {name} of {where}", f"the parameter {text.strip()!r}: {why}", _NEEDED)
        parameters.append([found["name"], _DTYPES[found["type"]] if found["pointer"] else ""])
    taken = {parameter for parameter, _ in parameters}
    lacking = [one for one in (*types, *(["out"] if op["returns"] else [])) if one not in taken]
    if lacking:
        needed = "a parameter for each argument of the schema, and out for its result"
        raise _bad(f"{op['name']} by {name} of {where}", f"no parameter {lacking[0]}", needed)
    return {"name": name, "threads": int(match[1] or THREADS), "parameters": parameters}


_NEEDED = "the names and types of the schema's arguments, or out, n (number of elements) or one such as x_size_0"


def _why_not(op: Op, types: Mapping[str, str], found: re.Match[str]) -> str:
    """Why a parameter of a kernel does not fit its op; empty if it does."""
    name, pointer = found["name"], bool(found["pointer"])
    is_out = name == "out" and op["returns"] and name not in types
    size = re.fullmatch(r"(\w+)_size_\d", name)
    kind = "Tensor" if is_out else types.get(name, "int" if name == "n" or (size and size[1] in op["tensors"]) else "")
    if not kind:
        return "no argument of that name"
    if kind != "Tensor":
        return "" if not pointer and found["type"] in _NUMBERS[kind] else f"not of the type {kind}"
    if not pointer or found["type"] not in _DTYPES:
        return "not a pointer to numbers of a dtype of torch"
    writes = is_out or name in op["written"]
    return "" if writes or found["const"] else "not const, and the schema does not say that it is written"


def _bad(what: str, found: str, needed: str) -> KernelError:
    return KernelError(
        f"{what} cannot be made an op", found=found, needed=needed, fix="change the schema in setup.py, or the kernel"
    )
