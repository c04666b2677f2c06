"""The Triton twins: their numbers, in Triton's interpreter here and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import spawn

torch = pytest.importorskip("torch")

from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast._dispatch import namespace  # noqa: E402
from precast.ops import _folders  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.triton]

TWINS = {op for family in FAMILIES if family.twins for op in family.op_names}
Kept = dict[str, tuple[str, list[Any], list[Any]]]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """What every twin gave, from a process of its own: Triton reads the variable when it is imported."""
    path = tmp_path_factory.mktemp("twins") / "kept.pt"
    interpreted = {"TRITON_INTERPRET": int(request.param == "cpu"), "TRITON_CACHE_DIR": path.parent / "cache"}
    env = spawn.environ(PYTHONPATH=spawn.search_path(), **interpreted)
    spawn.python("-W", "ignore", Path(__file__).with_name("run_twins.py"), request.param, path, env=env, timeout=600)
    results: Kept = torch.load(path, weights_only=True)
    return results


def test_every_op_that_a_twin_may_stand_in_for_has_one() -> None:
    assert all(callable(namespace.twin(op)) for op in TWINS)
    with pytest.raises(KeyError, match="cpu_adam has no twin"):
        namespace.twin("adam_")


def test_every_twin_is_run(kept: Kept) -> None:
    assert {op for op, _, _ in kept.values()} == TWINS


def test_the_numbers_are_those_of_the_op(kept: Kept, assert_accurate: Callable[..., None]) -> None:
    wrong = []
    for name, (op, args, results) in kept.items():
        for ours, exact, torchs in zip(results, *answers(op, args), strict=True):
            finite = exact.isfinite()
            assert torch.equal(ours.isfinite(), finite), f"{name}: not the same elements are finite"
            try:
                assert_accurate(*(t.where(finite, 0) for t in (ours, exact, torchs)), terms=terms(args, exact, torchs))
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def answers(op: str, args: list[Any]) -> tuple[list[Any], list[Any]]:
    """The reference in float64, and in the dtype of the arguments."""
    found = []
    for wide in (True, False):
        given = [
            (arg.double() if wide and arg.is_floating_point() else arg.clone()) if hasattr(arg, "dtype") else arg
            for arg in args
        ]
        result = _folders.reference(op)(*given)
        found.append(given[:2] if result is None else list(result) if isinstance(result, tuple) else [result])
    return found[0], found[1]


def terms(args: list[Any], exact: Any, torchs: Any) -> Any:
    """For float32, where a result can be a difference: the largest number that goes in or comes out."""
    if torchs.dtype != torch.float32 or exact.numel() == 0:
        return None
    numbers = [arg for arg in args if hasattr(arg, "dtype") and arg.is_floating_point()]
    largest = max(float(t.nan_to_num(0, 0, 0).abs().max()) for t in (*numbers, exact) if t.numel())
    return exact.nan_to_num(0, 0, 0).abs() + largest


def test_a_twin_refuses_what_its_op_refuses() -> None:
    checks = namespace.CHECKS
    x, weight = torch.randn(4, 8), torch.randn(7)
    with pytest.raises(RuntimeError, match=r"rms_norm: weight has shape \(7,\); needed \(8,\)"):
        checks["rms_norm"](x, weight, 1e-6, 0)
    assert set(checks) >= TWINS


STAND_IN = """
    import dataclasses, logging
    logging.basicConfig(level=logging.WARNING)
    import torch
    from precast import errors, ops
    from precast._load import loader, probe
    from precast.kernel_loader import RMSNormLoader
    real_host, real_builders = probe.probe_host, probe.probe_builders

    def intel(settings, **kwargs):
        host = real_host(settings, **kwargs)
        return dataclasses.replace(host, torch=dataclasses.replace(host.torch, xpu="20250300"))

    probe.probe_host = intel
    has_kernel = lambda: torch._C._dispatch_has_kernel_for_dispatch_key("precast::rms_norm", "XPU")
    probe.probe_builders = lambda settings: dataclasses.replace(real_builders(settings), triton=None)
    try:
        loader.ensure("rms_norm", "xpu")
    except errors.KernelUnavailable as error:
        print("REFUSED", "pip install triton" in str(error), has_kernel())
    probe.probe_builders = real_builders
    loaded = loader.ensure("rms_norm", "xpu")
    print("LOADED", loaded.host.kind, loaded.device, loaded.images, has_kernel())
    ops.define("multi_tensor")
    loader.ensure("multi_tensor", "xpu")
    print("LISTS", torch._C._dispatch_has_kernel_for_dispatch_key("precast::multi_tensor_step_", "XPU"))
    print("PLAIN", loader.ensure("multi_tensor", "xpu").host)
    print("AGAIN", loader.ensure("rms_norm", "xpu") is loaded, loader.load("rms_norm", "xpu") is loaded)
    try:
        loader.ensure("cpu_adam", "xpu")
    except errors.KernelUnavailable as error:
        print("WITHOUT", str(error).splitlines()[0])
    try:
        RMSNormLoader().load("rms_norm_triton")
    except errors.KernelUnavailable as error:
        print("BY NAME", str(error).splitlines()[0])
"""


def test_the_loader_registers_a_twin_where_nothing_else_can_be_had_and_says_so(run_child: Callable[[str], str]) -> None:
    said = dict(line.split(" ", 1) for line in run_child(STAND_IN).splitlines())
    assert said["REFUSED"] == "True False"
    assert said["LOADED"] == "triton xpu () True"
    assert said["LISTS"] == "True"
    assert said["PLAIN"].startswith("torch ") and said["PLAIN"].endswith("reference.py (plain torch)")
    assert said["AGAIN"] == "True True"
    assert said["WITHOUT"] == "cpu_adam has no xpu kernels"
    assert "Triton cannot stand in for rms_norm on cuda" in said["BY"]


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(("cuda", "80", "32"), id="sm_80"),
        pytest.param(("hip", "gfx942", "64"), id="gfx942", marks=pytest.mark.long),
    ],
)
def test_the_twins_compile_for_gpus_that_are_not_here(target: tuple[str, ...], tmp_path: Path) -> None:
    """The interpreter takes what the compiler refuses, such as an annotation that is no constant."""
    env = spawn.environ(PYTHONPATH=spawn.search_path(spawn.CHECKOUT), TRITON_CACHE_DIR=tmp_path)
    program = Path(__file__).with_name("compile_twins.py")
    assert int(spawn.python("-W", "ignore", program, *target, env=env, timeout=600).stdout) > 30
