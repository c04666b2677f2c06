"""A sample of the hostile calls, which ``make hostile`` makes as a whole; and the law, shown refusing."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit import spawn

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import precast  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast.ops import _folders  # noqa: E402
from tests.hostile import apart, changes, law  # noqa: E402
from tests.hostile.calls import Call, calls, copied  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

COUNT = 700
# Cases that broke the law once and have no test elsewhere.
BROKE = (
    "bias_act(dim) junk: tensor of one",
    "downsample2d(down) junk: numpy array",
    "backward of get_cos_and_sin(lengths) tensor: expanded first",
    "get_cos_and_sin(sin_table) tensor: complex conjugate",
    "backward of moe_unpermute(rows) tensor: scalar",
    "rms_norm_rotary_embedding(rounding) junk: numpy array",
    "cross_entropy(reduction) junk: numpy array",
    "setup_filter(gain) number: 1000000000000000000000000000000",
    "upfirdn2d(padding.0) junk: numpy array",
)


# A child of `make hostile` builds the level of this machine; this one takes the builds of every level of other tests.
EVERY_LEVEL = """
import platform, runpy
from precast._builder import flags
from precast._load import jit
jit.levels_to_build = lambda settings: flags.cpu_levels(platform.machine())
runpy.run_module("tests.hostile", run_name="__main__")
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_sample_keeps_the_law(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "COMMAND", (sys.executable, "-c", EVERY_LEVEL, "--child"))
    drawn = random.Random(2026).sample(list(law.cases(device)), COUNT)
    again = [case for case in law.cases(device) if str(case) in BROKE]
    assert again and (device != "cpu" or len(again) == len(BROKE)), "a GPU has other forms of some calls"
    outcome = apart.run(list(dict.fromkeys([*drawn, *again])), device)
    assert outcome.broken == {}
    assert COUNT <= outcome.counts.total() <= COUNT + len(BROKE)
    assert outcome.counts["equal"] > COUNT // 5
    assert outcome.counts["refused"] > COUNT // 5


def test_every_function_and_every_op_is_called() -> None:
    names = {name.partition("#")[0] for name in calls()}
    planned = {op for family in FAMILIES for op in family.op_names if _folders.is_planned(op)}
    ops = {f"torch.ops.precast.{op}" for family in FAMILIES for op in family.op_names if op not in planned}
    assert names == {*precast.ops.__all__, *ops}
    tensors = {(case.call, case.path) for case in law.cases("cpu") if case.change == "tensor: freed"}
    assert ("layer_norm", ("weight",)) in tensors
    assert ("torch.ops.precast.adam_", ("grads", 0)) in tensors


class Counted(TorchDispatchMode):
    """Counts the ops of ours."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace == "precast"
        return func(*args, **(kwargs or {}))


def test_plain_torch_stands_in_for_every_op() -> None:
    """In one test, because the calls are known only when the kernels have run."""
    counts = {}
    for name, call in calls().items():
        if "cpu" in call.devices:
            with Counted() as counted:
                call(copied(call.arguments))
            with law.Plain() as plain:
                call(copied(call.arguments))
            counts[name] = plain.count, counted.count
    assert {name: both for name, both in counts.items() if both[0] != both[1]} == {}
    assert len(counts) > 50


# ---- the law refuses ----


def rows(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    return precast.ops.layer_norm(x, weight, None, eps)


def forgets_the_weight(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    return rows(x, weight if weight.untyped_storage().nbytes() else None, eps)


def writes_first(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    x.data.zero_()
    return rows(x, weight, eps)


def bumps_first(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    torch.autograd.graph.increment_version([x])
    return rows(x, weight, eps)


def says_little(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    raise RuntimeError("it does not work")


def fails_inside(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    raise TypeError("x: Expected Tensor but got None")


def asserts(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    raise AssertionError("x")


def writes_quietly(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    y = rows(x, weight, eps)
    if not torch.overrides._get_current_function_mode_stack():
        x.data[..., 0] += 1
    return y


def is_off(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    return rows(x, weight, eps if torch.overrides._get_current_function_mode_stack() else eps + 1)


def serves_all(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    return rows(x, weight if torch.overrides._get_current_function_mode_stack() else weight[:8], eps)


REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "freed is absent": (forgets_the_weight, "freed", "memory that is not there"),
    "written, then refused": (writes_first, "float64", "wrote before it raised"),
    "counted, then refused": (bumps_first, "float64", "moved a version counter before it raised"),
    "no argument is named": (says_little, "float64", "names no argument"),
    "an error from inside": (fails_inside, "float64", "from inside"),
    "an error of another class": (asserts, "float64", "AssertionError"),
    "written without a word": (writes_quietly, "gaps", "is written"),
    "wrong numbers": (is_off, "gaps", "are wrong"),
    "served, where torch refuses": (serves_all, "longer first", "works, where plain torch raises RuntimeError"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_broken_function_is_found(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, change, text = REFUSED[why]
    given = {"x": torch.randn(4, 8), "weight": torch.randn(8), "eps": 1e-6}
    kinds = {"x": "Tensor", "weight": "Tensor | None", "eps": "float"}
    monkeypatch.setattr(law, "calls", lambda: {"layer_norm": Call("layer_norm", function, given, kinds, ("cpu",))})
    case = law.Case("layer_norm", ("weight",), f"tensor: {change}")
    with pytest.raises(law.Broken, match=text):
        law.judge(case, "cpu")
    monkeypatch.setattr(law, "calls", lambda: {"layer_norm": Call("layer_norm", rows, given, kinds, ("cpu",))})
    if change != "freed":
        assert law.judge(case, "cpu") in ("equal", "refused")


ENDS = {"os.kill(os.getpid(), 11)": "signal SIGSEGV", "time.sleep(60)": "hung for 1 s", "os._exit(3)": "status 3"}


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_ends_names_its_case(end: str, forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"""import os, sys, time
from tests.hostile import apart
apart.SECONDS = 1
def judged(line):
    if "deadly" in line:
        {end}
    return {{"how": "equal"}}
cases = sys.stdin.readlines()
apart.forked(cases, judged) if {forks} else apart.in_turn(cases, 0, judged)
"""
    monkeypatch.setattr(apart, "COMMAND", (sys.executable, "-c", source))
    monkeypatch.setattr(apart, "SECONDS", 1)
    cases = [law.Case("f", ("x",), change) for change in ("plain", "deadly", "strange", "deadly too")]
    outcome = apart.run(cases, "cpu")
    assert outcome.counts == {"equal": 2, "broken": 2}
    assert list(outcome.broken) == ["f(x) deadly", "f(x) deadly too"]
    assert all(ENDS[end] in text for text in outcome.broken.values())
    if "sleep" in end and not forks:
        assert all("in judged" in text for text in outcome.broken.values())  # where it hung


def test_a_byte_behind_guarded_memory_cannot_be_read() -> None:
    source = """import ctypes, torch
from tests.hostile.memory import Guarded
guarded = Guarded()
held = torch.empty(0).set_(guarded.place(torch.arange(5.0).untyped_storage()))
assert held.tolist() == [0, 1, 2, 3, 4]
print(ctypes.string_at(held.data_ptr() - 1, 21)[0], flush=True)
ctypes.string_at(held.data_ptr() + 1, 20)
"""
    assert spawn.python("-c", source, status=-signal.SIGSEGV).stdout == "0\n"


def test_windows_and_overlaps_share_memory() -> None:
    x = torch.arange(12.0).view(3, 4)
    assert changes.TENSOR["windows"].make(x).tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert changes.overlapping(torch.zeros(2, 4), x).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert changes.overlapping(torch.zeros(4, 4), x) is None
