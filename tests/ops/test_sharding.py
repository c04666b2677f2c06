"""The ops on DTensors: two processes over gloo give what one gives, and what has no rule is refused by name."""

from __future__ import annotations

import importlib
import json
import textwrap
from typing import Any

import pytest

from tests.kit import spawn

torch = pytest.importorskip("torch")

from precast._builder import catalogue  # noqa: E402
from precast._dispatch import namespace  # noqa: E402
from tests.ops.tensors import ON_ROWS  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

# Each process keeps what it found: by case and placement, where the result and the gradients are; and the refusals.
RANK = """
    import json, os, sys
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    from precast import ops
    before = "precast._dispatch.sharding" in sys.modules
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    placed = lambda tensor, placement: distribute_tensor(tensor, mesh, [placement])
    torch.manual_seed(0)
    x, residual = torch.randn(3, 4, 16), torch.randn(3, 4, 16)  # three: unlike parts
    weight, bias, mask = torch.randn(16), torch.randn(16), torch.rand(3, 1, 16) < 0.3
    first = lambda result: result if isinstance(result, torch.Tensor) else result[0]
    masked = lambda t: ops.scaled_masked_softmax(
        t, placed(mask, Replicate()) if isinstance(t, DTensor) else mask, 0.5, masked_value=-1e4
    )
    CASES = {
        "rms_norm": (ops.rms_norm, (x, weight)),
        "fused_add_rms_norm": (ops.fused_add_rms_norm, (x, residual, weight)),
        "rms_norm_gated": (ops.rms_norm_gated, (x, residual, weight)),
        "l2_norm": (ops.l2_norm, (x,)),
        "layer_norm": (ops.layer_norm, (x, weight, bias)),
        "layer_norm without parameters": (ops.layer_norm, (x,)),
        "silu_and_mul": (ops.silu_and_mul, (x,)),
        "silu_and_mul of two": (ops.silu_and_mul, (x, residual)),
        "gelu_quick": (ops.gelu_quick, (x,)),
        "scaled_softmax": (lambda t: ops.scaled_softmax(t, 0.5), (x,)),
        "scaled_masked_softmax": (masked, (x,)),
        "scaled_aligned_causal_softmax": (lambda t: ops.scaled_aligned_causal_softmax(t, 0.5), (x,)),
    }
    key, cos, sin = torch.randn(3, 5, 16), torch.randn(3, 8), torch.randn(3, 8)  # as many tokens as heads
    rows = torch.tensor([2, 0, 1])
    heads = torch.randn(3, 3, 16)
    beside = lambda t, *tensors: [placed(s, Replicate()) if isinstance(t, DTensor) else s for s in tensors]
    turned = lambda q, k: ops.rotary_embedding(q, k, *beside(q, cos, sin))
    taken = lambda q: ops.rotary_embedding(q, None, *beside(q, cos, sin), positions=beside(q, rows)[0])
    filters = torch.randn(4, 3)
    CASES |= {
        "causal_conv1d": (lambda t: ops.causal_conv1d(t, *beside(t, filters), activation="silu"), (x,)),
        "rotary_embedding": (lambda q: turned(q, *beside(q, key)), (heads,)),
        "rotary_embedding of key": (lambda k: turned(*beside(k, heads), k)[1], (key,)),
        "rotary_embedding by positions": (taken, (heads,)),
    }
    found = {"before": before}
    for name, (function, tensors) in CASES.items():
        for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
            leaves = [t.clone().requires_grad_() for t in tensors]
            expected = first(function(*leaves))
            grad = torch.randn_like(expected)
            expected.backward(grad)
            shards = [placed(t, placement if t.dim() > 1 else Replicate()).requires_grad_() for t in tensors]
            result = first(function(*shards))
            result.backward(placed(grad, Replicate()))
            torch.testing.assert_close(result.full_tensor(), expected)
            for shard, leaf in zip(shards, leaves):
                torch.testing.assert_close(shard.grad.full_tensor(), leaf.grad)
            where = [str(t.placements[0]) for t in (result, *(s.grad for s in shards))]
            found[f"{name} {placement}"] = where

    def refusal(function, *args):
        try:
            function(*args)
        except RuntimeError as error:
            return str(error)

    sharded, whole = placed(x, Shard(0)), placed(weight, Replicate())
    kept = [sharded.full_tensor(), whole.full_tensor()]
    found["in place"] = refusal(ops.fused_add_rms_norm_, sharded, placed(residual, Shard(0)), whole)
    tables = [placed(t, Replicate()) for t in (cos, sin)]
    rows = [placed(torch.randn(4, 2, 8), Shard(1)) for _ in range(3)]
    pair, slots = [placed(torch.zeros(2, 4, 2, 8), Shard(2)) for _ in range(2)], placed(torch.arange(4), Replicate())
    found["caches"] = refusal(ops.reshape_and_cache, *rows[1:], *pair, slots)
    whole_tables = [placed(torch.randn(4, 4), Replicate()) for _ in range(2)]
    found["heads and caches"] = refusal(ops.rotary_embedding_and_cache, *rows, *whole_tables, *pair, slots)
    found["heads in place"] = refusal(ops.rotary_embedding_, placed(heads, Shard(0)), None, *tables)
    lists = [[placed(t.clone(), Shard(0))] for t in (x, x, x, x)]
    found["lists"] = refusal(torch.ops.precast.adam_, *lists, [], 0.1, 0.9, 0.99, 1e-8, 0.0, 0.5, 0.5, 1.0, True, False)
    assert torch.equal(sharded.full_tensor(), kept[0])
    with open(f"found{dist.get_rank()}", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that let go of tensors while Python ends would abort
"""


BY_ELEMENTS = ("silu_and_mul of two", "gelu_quick")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "rank.py").write_text(textwrap.dedent(RANK))
    env = spawn.environ(PYTHONPATH=spawn.search_path(), OMP_NUM_THREADS=1)
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "rank.py")
    spawn.python(*words, cwd=folder, env=env)
    return [json.loads((folder / f"found{rank}").read_text()) for rank in range(2)]


def test_both_processes_found_the_same(found: list[dict[str, Any]]) -> None:
    assert found[0] == found[1]
    assert found[0]["before"] is False, "the rules are looked at before anybody has a DTensor"


ROWS = ["rms_norm", "fused_add_rms_norm", "layer_norm", "silu_and_mul", "scaled_softmax", "rms_norm_gated", "l2_norm"]


def test_a_batch_of_convolutions_stays_where_it_is(found: list[dict[str, Any]]) -> None:
    assert found[0]["causal_conv1d S(0)"] == ["S(0)", "S(0)"] and found[0]["causal_conv1d S(1)"][0] == "R"


@pytest.mark.parametrize("op", ROWS)
def test_rows_stay_where_they_are(found: list[dict[str, Any]], op: str) -> None:
    where = found[0]
    assert where[f"{op} S(0)"][:2] == ["S(0)", "S(0)"]
    assert where[f"{op} R"][:2] == ["R", "R"]
    assert where[f"{op} S(1)"][0] == "S(1)"


@pytest.mark.parametrize("op", BY_ELEMENTS)
def test_single_elements_stay_where_they_are(found: list[dict[str, Any]], op: str) -> None:
    """The columns too, as the projections of a tensor-parallel model leave them."""
    for placement in ("S(0)", "S(1)", "S(2)", "R"):
        assert set(found[0][f"{op} {placement}"]) == {placement}


def test_what_all_rows_share_has_a_partial_gradient(found: list[dict[str, Any]]) -> None:
    assert found[0]["layer_norm S(1)"] == ["S(1)", "S(1)", "P(sum)", "P(sum)"]
    assert found[0]["rms_norm S(0)"] == ["S(0)", "S(0)", "P(sum)"]


def test_a_row_is_never_split_and_a_causal_one_not_taken_from_its_place(found: list[dict[str, Any]]) -> None:
    rows = [name for name in found[0] if name.endswith("S(2)") and not name.startswith(BY_ELEMENTS)]
    results = [found[0][name][0] for name in rows]
    assert results, "no case was placed on the last dimension"
    assert "S(2)" not in results
    assert found[0]["scaled_aligned_causal_softmax S(1)"][0] != "S(1)"
    assert found[0]["scaled_aligned_causal_softmax S(0)"][0] == "S(0)"


def test_heads_and_tokens_stay_where_they_are(found: list[dict[str, Any]]) -> None:
    for placement in ("S(0)", "S(1)", "R"):
        for name in ("rotary_embedding", "rotary_embedding of key", "rotary_embedding by positions"):
            assert found[0][f"{name} {placement}"][0] == placement


@pytest.mark.parametrize(
    ("case", "op"),
    [
        ("in place", "fused_add_rms_norm_"),
        ("heads in place", "rotary_embedding_"),
        ("lists", "adam_"),
        ("caches", "reshape_and_cache"),
        ("heads and caches", "rotary_embedding_and_cache"),
    ],
)
def test_what_writes_into_its_arguments_is_refused_in_one_sentence(
    found: list[dict[str, Any]], case: str, op: str
) -> None:
    assert f"{op}: a DTensor was given, and there is no rule for sharding this op; needed" in found[0][case]
    assert "x.to_local()" in found[0][case]


def test_every_op_on_rows_has_a_rule() -> None:
    for op in ON_ROWS:
        importlib.import_module(f"precast.ops.{catalogue.folder_of(op).name}")
    assert [op for op in ON_ROWS if namespace.RULES[op] is namespace.refused] == ["fused_add_rms_norm_"]
