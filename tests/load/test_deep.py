"""``precast doctor --deep``: every op has a check, wrong numbers are seen, and a kernel that crashes is named."""

from __future__ import annotations

import json
import re
import sys

import pytest

from precast._builder import catalogue, python
from precast._cli import deep
from tests.load.conftest import Site

torch = pytest.importorskip("torch")

from precast._cli import numbers  # noqa: E402 - it imports torch
from precast.ops import _folders  # noqa: E402


def ops_on(device: str) -> list[str]:
    families = [family for family in catalogue.FAMILIES if device in family.devices]
    return [op for family in families for op in family.op_names]


OPS = ops_on("cpu")


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("op", OPS)
def test_every_op_computes_what_plain_torch_does(op: str) -> None:
    assert numbers.check(op, "cpu") is None


@pytest.mark.gpu
@pytest.mark.compiler
@pytest.mark.parametrize("op", ops_on("cuda"))
def test_every_op_does_so_on_a_gpu(op: str) -> None:
    assert numbers.check(op, "cuda") is None


@pytest.mark.torch
@pytest.mark.parametrize("op", sorted(op for op in {*OPS, *ops_on("cuda")} if not _folders.is_planned(op)))
def test_a_wrong_number_is_seen(op: str) -> None:
    """The check is given kernels that are right but for one value."""

    def wrong(*arguments: object) -> object:
        result = _folders.reference(op)(*arguments)
        first = numbers._tensors(arguments if result is None else result)[0]
        first[(-1,) * first.dim()] += 0.01 if first.is_floating_point() else 1
        return result

    found = numbers.check(op, "cpu", wrong)
    assert found is not None and "result 0: 1 of " in found and re.search(r"by up to (0\.01|1\b)", found)


@pytest.mark.torch
def test_a_result_that_is_missing_is_seen() -> None:
    assert numbers.check("layer_norm_backward", "cpu", lambda *_: torch.zeros(5, 33)) == "1 results, needed 3"
    with pytest.raises(KeyError, match="no example for 'new_op'"):
        _folders.arguments("new_op")


DYING = """
import json, os, signal, sys
for pair in sys.argv[2:]:
    print(json.dumps({"pair": pair}), flush=True)
    if pair.startswith("scaled_softmax"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if pair.startswith("scaled_masked"):
        sys.exit(7)
    print(json.dumps({"pair": pair, "wrong": None}), flush=True)
"""


def test_a_kernel_that_ends_its_process_is_named_and_the_others_are_still_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python, "command", lambda *words: [sys.executable, "-c", DYING, *words])
    found = {check["op"]: check["wrong"] for check in deep.examine([(catalogue.get("softmax"), "cpu")])}
    assert found == {
        "scaled_softmax": "the process that ran it was ended by SIGSEGV",
        "scaled_masked_softmax": "the process that ran it ended with status 7; what it said is above",
        "scaled_upper_triang_masked_softmax": None,
        "scaled_aligned_causal_softmax": None,
    }


@pytest.mark.parametrize("status", [0, 3])
def test_a_child_that_says_nothing_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(python, "command", lambda *_: [sys.executable, "-c", f"raise SystemExit({status})"])
    (check,) = deep.examine([(catalogue.get("cpu_adam"), "cpu")])
    assert not check["ok"] and f"status {status}" in check["wrong"]


@pytest.mark.torch
@pytest.mark.compiler
def test_in_depth_the_kernel_is_loaded_and_asked(built: Site) -> None:
    ask = "from precast.__main__ import main; print('status', main(['doctor', '--deep', '--json', 'cpu_adam']))"
    said, _, status = built.ok(ask).rpartition("status ")
    facts = json.loads(said)
    assert status == "0\n" and facts["ok"]
    assert facts["deep"] == [{"op": "adam_", "device": "cpu", "ok": True, "wrong": None}]
