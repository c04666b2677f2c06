"""The namespace, in child processes: schemas, the loading stub in every way an op is called, and the guards."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.kit import forked

pytestmark = pytest.mark.torch

# A loader that registers plain torch kernels at its first call, and counts.
TOY = """
import types, threading, torch
from precast._builder import catalogue
from precast._dispatch import namespace
calls, kept = [], []
def ensure(family, device):
    calls.append((family, device))
    if calls.count((family, device)) == 1 and device == "cpu":
        kept.append(torch.library.Library("precast", "IMPL"))
        name = "rms_norm" if family == "rms_norm" else "adam_"
        kept[-1].impl(name, lambda x, w, *_: x * w if family == "rms_norm" else None, "CPU")
import sys
toy = types.ModuleType("precast._load.loader")
toy.ensure = ensure
import precast._load
sys.modules["precast._load.loader"] = precast._load.loader = toy
for family in catalogue.FAMILIES:
    with namespace.family(family.name):
        pass
"""


def child(source: str) -> str:
    run = forked.run(textwrap.dedent(source), env=os.environ, cwd=Path.cwd())
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_stub_loads_once_and_hands_the_call_on() -> None:
    child(
        TOY
        + """
op = namespace.overload("rms_norm")
x, w = torch.full((2, 3), 2.0), torch.full((3,), 3.0)
assert calls == []
assert torch.equal(op(x, w, 1e-6, 0), x * w)
assert torch.equal(op(x, w, eps=1e-6, casting=0), x * w)
assert torch.equal(torch.ops.precast.rms_norm(x, w, 1e-6, 0), x * w)
assert calls == [("rms_norm", "cpu")], calls
torch.ops.precast.adam_([x], [x], [x], [x], [], *[1.0] * 8, True, False)
assert calls[1:] == [("cpu_adam", "cpu")], calls
torch.ops.precast.adam_([], [], [], [], [], *[1.0] * 8, True, False)
"""
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_first_call_may_be_a_compiled_one(backend: str) -> None:
    child(
        TOY
        + f"""
torch.library.register_fake("precast::rms_norm", lambda x, *_: torch.empty_like(x), lib=namespace.library())
f = torch.compile(lambda x, w: torch.ops.precast.rms_norm(x, w, 1e-6, 0) + 1, fullgraph=True, backend={backend!r})
x, w = torch.full((2, 3), 2.0), torch.full((3,), 3.0)
assert torch.equal(f(x, w), x * w + 1) and calls == [("rms_norm", "cpu")], calls
"""
    )


def test_export_loads_nothing_and_the_program_runs_from_a_thread() -> None:
    child(
        TOY
        + """
torch.library.register_fake("precast::rms_norm", lambda x, *_: torch.empty_like(x), lib=namespace.library())
class Net(torch.nn.Module):
    def forward(self, x, w):
        return torch.ops.precast.rms_norm(x, w, 1e-6, 0)
x, w = torch.full((2, 3), 2.0), torch.full((3,), 3.0)
program = torch.export.export(Net(), (x, w))
assert calls == []
seen = []
thread = threading.Thread(target=lambda: seen.append(program.module()(x, w)))
thread.start(); thread.join()
assert torch.equal(seen[0], x * w) and calls == [("rms_norm", "cpu")], calls
"""
    )


def test_a_device_that_still_has_no_kernel_is_named_and_does_not_recurse() -> None:
    said = child(
        TOY
        + """
from precast.errors import KernelUnavailable
try:
    torch.ops.precast.fused_add_rms_norm(*[torch.ones(2, 3)] * 2, torch.ones(3), 1e-6, 0)
except KernelUnavailable as error:
    print(error)
"""
    )
    assert "precast.fused_add_rms_norm.default: the cpu kernels of rms_norm were loaded" in said
    assert "needed  dense tensors on cpu or cuda" in said


def test_another_library_in_the_namespace_is_refused() -> None:
    for other in (
        'kept = torch.library.Library("precast", "DEF"); kept.define("theirs(Tensor x) -> Tensor")',
        'kept = torch.library.Library("precast", "DEF")',
        'torch.library.define("precast::rms_norm", "(Tensor x) -> Tensor")',
    ):
        said = child(
            f"""
import torch
{other}
from precast._dispatch import namespace
from precast.errors import KernelIncompatible
try:
    with namespace.family("rms_norm"):
        raise AssertionError("it was defined")
except KernelIncompatible as error:
    print(error)
"""
        )
        assert said.startswith("the operator namespace 'precast' is taken in this process"), said
        assert "pip list" in said


def test_a_second_copy_of_the_package_is_refused() -> None:
    said = child(
        """
import sys
from precast._dispatch import namespace
namespace.library()
for name in [name for name in sys.modules if name.split(".")[0] == "precast"]:
    del sys.modules[name]
from precast._dispatch import namespace as second
from precast.errors import KernelIncompatible
assert second is not namespace
try:
    second.library()
except KernelIncompatible as error:
    print(error)
"""
    )
    assert "another copy of precast: Only a single TORCH_LIBRARY can be used" in said


def test_a_kernel_somebody_else_registered_is_refused() -> None:
    said = child(
        """
import torch
from precast._builder import catalogue
from precast._dispatch import namespace
from precast._load import handover
from precast.errors import KernelIncompatible
for family in (catalogue.get("rms_norm"), catalogue.get("cpu_adam")):
    with namespace.family(family.name):
        pass
handover.refuse_foreign_kernels(catalogue.get("rms_norm").op_names, "CPU")
theirs = torch.library.Library("precast", "IMPL")
theirs.impl("rms_norm", lambda x, *_: x, "CPU")
handover.refuse_foreign_kernels(catalogue.get("rms_norm").op_names, "CUDA")
handover.refuse_foreign_kernels(catalogue.get("cpu_adam").op_names, "CPU")
try:
    handover.refuse_foreign_kernels(catalogue.get("rms_norm").op_names, "CPU")
except KernelIncompatible as error:
    print(error)
"""
    )
    assert said.startswith("precast::rms_norm already has a CPU kernel")


def test_the_schemas_carry_the_tag_and_the_mutations() -> None:
    child(
        """
import torch
from precast._builder import catalogue
from precast._dispatch import namespace
library = namespace.library()
assert namespace.library() is library
for family in catalogue.FAMILIES:
    with namespace.family(family.name):
        pass
    for schema, name in zip(family.ops, family.op_names):
        op = namespace.overload(name)
        assert torch.Tag.pt2_compliant_tag in op.tags
        # What is written in place ends in _; what writes into a cache says so by its name.
        assert op._schema.is_mutable == ("!" in schema) == name.endswith(("_", "_and_cache")), schema
"""
    )


def test_kernels_of_a_family_whose_ops_are_not_defined_are_refused() -> None:
    said = child(
        """
from precast._builder import catalogue
from precast._dispatch import namespace
from precast._load import handover
from precast.errors import KernelUnavailable
try:
    handover.formulas_of(catalogue.get("rms_norm"))
except KernelUnavailable as error:
    print(error)
try:
    with namespace.family("rms_norm"):
        raise ZeroDivisionError  # a formula that cannot be registered
except ZeroDivisionError:
    pass
try:
    handover.formulas_of(catalogue.get("rms_norm"))
except KernelUnavailable as error:
    print(error)
with namespace.family("cpu_adam"):
    pass
assert handover.formulas_of(catalogue.get("cpu_adam")).library is namespace.library()
"""
    )
    assert said.count("the kernels of rms_norm cannot be registered before its ops are defined") == 2
    assert "fix     1) import precast; precast.load('rms_norm')" in said


def test_an_op_is_defined_by_its_family_and_the_loader_never_imports_the_ops() -> None:
    child(
        """
import sys
import precast
from precast._load import loader
from precast.errors import KernelUnavailable
try:
    loader.ensure("rms_norm", "cpu")
except KernelUnavailable as error:
    assert "before its ops are defined" in str(error), error
assert "precast.ops" not in sys.modules
assert precast.load("rms_norm").family == "rms_norm" and "precast.ops" in sys.modules
assert "precast.ops.rotary" not in sys.modules
assert precast.load("rotary_embedding").family == "rotary" and "precast.ops.rotary" in sys.modules
"""
    )
