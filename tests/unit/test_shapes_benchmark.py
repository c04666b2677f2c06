"""``benchmarks.shapes`` without a GPU: the list, the draws, the ratios, and that everybody computes the same."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit import spawn

ROOT = Path(__file__).resolve().parents[2]
OPS = (
    "fused_add_rms_norm",
    "gelu_tanh_and_mul",
    "layer_norm",
    "rms_norm",
    "scaled_masked_softmax",
    "scaled_softmax",
    "scaled_upper_triang_masked_softmax",
    "silu_and_mul",
)


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def test_the_list_has_the_widths_of_models_in_at_most_120_cases() -> None:
    cases = module("shapes_cases").listed("cuda")
    assert 100 <= len(cases) <= 120 and len(set(cases)) == len(cases)
    assert {case.op for case in cases} == {*OPS, "gelu_new", "gelu_quick"}
    assert {case.way for case in cases} == {"forward", "training"} and all(case.model for case in cases)
    widths = {case.shape[-1] for case in cases}
    assert {768, 2880, 3584, 5120, 7168, 18432, 64, 128, 256, 32000, 262144} <= widths
    assert {77, 96, 197, 257, 577, 769, 1500} <= widths
    rows = {case.shape[0] for case in cases}
    assert min(rows) == 1 and max(rows) == 262144


def test_the_list_for_cpus_has_at_most_80_cases() -> None:
    cases = module("shapes_cases").listed("cpu")
    assert 60 <= len(cases) <= 80 and len(set(cases)) == len(cases)
    assert tuple(sorted({case.op for case in cases})) == OPS
    assert {case.way for case in cases} == {"forward", "training"} and all(case.model for case in cases)
    assert {case.dtype for case in cases} == {"float32", "bfloat16", "float16"}
    assert {37, 77, 96, 128, 197, 769, 4096, 32768, 262144} <= {case.shape[-1] for case in cases}
    assert all(math.prod(case.shape[:-1]) <= 16384 for case in cases)


def test_families_begin_with_a_list() -> None:
    cases, families = module("shapes_cases"), module("families").FAMILIES
    listed = cases.listed("families")
    assert len(set(listed)) == len(listed) and {"scaled_softmax", "bias_act"} <= {case.op for case in listed}
    for case in listed:
        drawn = families[case.op].draw(random.Random(0), 1 << 20) if case.op in families else (1, 1)
        assert len(case.shape) == len(drawn), f"{case.text}: {case.op} takes {len(drawn)} numbers"
        assert case.way == "forward" or case.op not in families or families[case.op].learns, case.text
    assert {case.op for case in cases.listed_of(["bias_act"])} == {"bias_act"}
    assert cases.listed_of(list(families)) == listed


def test_calls_on_the_cpu_take_turns() -> None:
    pytest.importorskip("torch")
    turns, order = module("host_turns"), []
    calls = {name: [lambda name=name: order.append(name)] for name in ("precast", "torch eager")}
    found = turns.in_turns(calls)
    assert set(found) == {"cold", "steady"} and all(set(of) == set(calls) for of in found.values())
    rounds = turns.ROUNDS
    assert {len(us) for us in found["cold"].values()} == {rounds * turns.COLD_REPEATS}
    assert {len(us) for us in found["steady"].values()} == {rounds * turns.STEADY_REPEATS}
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes >= 2 * 2 * rounds - 1  # each contestant has a turn for each measure in each round


def test_another_installation_takes_turns_but_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    turns, shapes = module("host_turns"), module("shapes")
    monkeypatch.setattr(turns, "WARM_US", 0)
    asked = []

    class Elsewhere:
        def turn_us(self, repeats: int, *, calls: int = 1, cold: bool = False) -> list[float]:
            asked.append((repeats, calls > 0, cold))
            return [1.0] * repeats

    found = turns.in_turns({"precast": [lambda: None], "torch eager": [lambda: None], shapes.BESIDE: [Elsewhere()]})
    assert asked[1:] == [(turns.COLD_REPEATS, True, True), (turns.STEADY_REPEATS, True, False)] * turns.ROUNDS
    assert shapes.peers(found["steady"]) == ["torch eager"]
    take = {"precast": [2.0], "torch eager": [3.0], shapes.BESIDE: [1.0]}
    assert shapes.ratios({"steady": take}) == {"steady": 1.5}
    assert shapes.gain_of({"takes": [{"steady": take}]}, "steady") == 0.5


def test_another_installation_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    other, cases = module("other_site"), module("shapes_cases")
    case = cases.Case("scaled_softmax", "forward", (3, 5), "float32", "a test")
    questions = [{"case": dataclasses.asdict(case)}, {"repeats": 2, "calls": 3, "cold": False}]
    monkeypatch.setattr(other.child, "use_installation", lambda site: None)
    monkeypatch.setattr(other.sys, "stdin", [json.dumps(question) for question in questions])
    other.serve(Path("unused"))
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers[0] == [] and len(answers[1]) == 2 and min(answers[1]) > 0


def test_random_cases_follow_their_seed_and_differ_with_it() -> None:
    cases = module("shapes_cases")
    first, again, other = (cases.drawn(seed, 200, "cuda") for seed in (1, 1, 2))
    assert first == again and first != other
    assert {case.op for case in first} == set(cases.ROW_OPS)
    assert {case.dtype for case in first} == {"bfloat16", "float16", "float32"}
    assert any(case.shape[1] % 8 for case in first) and any(case.shape[1] % 8 == 0 for case in first)
    assert all(1 <= case.shape[0] * case.shape[1] <= cases.MOST_ELEMENTS["cuda"] for case in first)
    assert cases.drawn(1, 40, "cuda") == first[:40]


def test_parts_are_all_cases_once() -> None:
    cases = module("shapes_cases")
    everything = [*cases.listed("cuda"), *cases.drawn(3, 40, "cuda")]
    parts = [case for part in range(1, 5) for case in cases.part_of(everything, part, 4)]
    assert Counter(parts) == Counter(everything)


def test_graphs_go_through_more_than_the_cache_holds() -> None:
    graphs = module("graphs")
    assert graphs.sets_for(1 << 30, 50 << 20) == 2
    assert graphs.sets_for(10 << 20, 50 << 20) == 15
    assert graphs.sets_for(100, 50 << 20) == graphs.MOST_CALLS
    assert graphs.spread([9.0, 10.0, 11.0, 10.0, 10.0]) == pytest.approx(0.05)


def made_up(model: str, way: str, *ratios: float) -> dict[str, Any]:
    """A case whose takes have these ratios: the best peer takes 10 us, another more."""

    def take(ratio: float) -> dict[str, dict[str, list[float]]]:
        peers = {"torch eager": [30.0] * 3, "torch.compile": [9.0, 10.0, 11.0]}
        return {"steady": {"precast": [10 / ratio] * 3, **peers}, "cold": {"precast": [5.0] * 3, **peers}}

    shape = {"op": "rms_norm", "way": way, "shape": [8, 64], "dtype": "bfloat16", "model": model}
    return {**shape, "absent": {"QuACK": "no peer: not here"}, "takes": [take(ratio) for ratio in ratios]}


def test_the_summary_has_cases_share_worst_and_geometric_mean() -> None:
    shapes = module("shapes")
    results = [
        made_up("a", "forward", 0.5, 2.0, 1.0),  # measured three times: the median counts
        made_up("b", "forward", 4.0),
        made_up("c", "training", 0.9, 0.8, 0.85),
        made_up("random", "forward", 1.25),
    ]
    assert shapes.ratios(results[0]["takes"][0]) == {"steady": 0.5, "cold": 2.0}
    lines = list(shapes.table(results))
    assert lines[0].endswith("1 of 4 cases below 0.97:")
    assert (
        "rms_norm training 8x64 bfloat16: precast 11.8 us" in lines[1] and "torch.compile 10.0 us +-10.0 %" in lines[1]
    )
    of = {line[:53].strip(): line[53:].split() for line in lines[2:]}
    assert of["listed rms_norm forward"] == ["2", "1.00", "1.00", "2.00", "1.00", "2.00", "2.00"]
    assert of["listed rms_norm training"] == ["1", "0.00", "0.85", "0.85", "1.00", "2.00", "2.00"]
    assert of["random, all, forward"] == ["1", "1.00", "1.25", "1.25", "1.00", "2.00", "2.00"]
    assert lines[-1] == "QuACK: no peer: not here"


def test_parts_are_put_together(tmp_path: Path) -> None:
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for path, result in zip(files, (made_up("a", "forward", 1.0), made_up("b", "forward", 1.0)), strict=True):
        path.write_text(json.dumps({"cases": [result]}))
    assert "0 of 2 cases below 0.97" in spawn.python("-m", "benchmarks.shapes", "--table", *files, cwd=ROOT).stdout


@pytest.mark.parametrize(
    "arguments",
    [["--json", "a", "--part", "5/4"], ["--json", "a", "--part", "two"], ["--json", "a", "--beside", "b"], []],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        module("shapes").parse(arguments)
    assert "needed" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("way", ["forward", "training"])
@pytest.mark.parametrize("op", OPS)
def test_everybody_computes_the_same(op: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, shapes = module("shapes_cases"), module("shapes")
    shape = (2, 3, 16, 16) if op.endswith("masked_softmax") else (8, 32)
    case = cases.Case(op, way, shape, "bfloat16", "a small one")
    given = cases.buffers(case, 2, "cpu")
    for peer in (cases.liger, cases.quack):
        monkeypatch.setattr(peer, "installed", lambda: None)
    functions, absent = cases.functions(case, "cpu")
    assert set(functions) == {"precast", "torch eager"} and set(absent) == {"Liger-Kernel", "QuACK"}
    for index in range(2):
        ours = cases.call_of(functions["precast"], given, index)()
        one = cases.Buffers(given.inputs[index:], given.gradients[index:], given.weights)
        theirs = cases.call_of(functions["torch eager"], cases.in_float32(one), 0)()
        shapes.check("precast", case, ours, theirs)
        leaves = len(given.inputs[0]) + len(given.weights)
        results = 2 if op == "fused_add_rms_norm" else 1
        assert len(ours) == results + (leaves if way == "training" else 0)
    moved = sum(t.nbytes for t in (*ours, *given.inputs[0])) if way == "forward" else 0
    assert way == "training" or cases.call_bytes(case) == moved
    with pytest.raises(AssertionError, match=f"{op} {way} .*, precast: "):
        shapes.check("precast", case, [t * 1.5 for t in ours], theirs)
    with pytest.raises(AssertionError, match=f"{op} {way} .*, precast: torch.float32"):
        shapes.check("precast", case, [t.float() for t in ours], theirs)


@pytest.mark.torch
@pytest.mark.compiler
def test_a_peer_that_fails_is_named_and_a_case_that_falls_short_is_measured_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    cases, shapes = module("shapes_cases"), module("shapes")
    case = cases.Case("scaled_softmax", "forward", (4, 16), "float32", "a small one")
    real = cases.functions(case, "cpu")[0]

    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("rows of 16 are not supported\nbut others are")

    def functions(case: Any, device: str) -> Any:
        return {**real, "Liger-Kernel": refuses, "QuACK": lambda x: 2 * torch.softmax(x, -1)}, {}

    slow = {"value": True}

    def in_turns(contestants: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
        assert set(contestants) == {"precast", "torch eager"}
        times = {"precast": [2.0 if slow["value"] else 1.0] * 3, "torch eager": [1.0] * 3}
        return {"steady": times, "cold": times}

    made = cases.buffers
    monkeypatch.setattr(shapes.shapes_cases, "buffers", lambda case, sets, device: made(case, sets, "cpu"))
    monkeypatch.setattr(shapes.shapes_cases, "functions", functions)
    monkeypatch.setattr(shapes.graphs, "captured", lambda calls: [call() for call in calls])
    result = shapes.measured(case, in_turns, 2, "cuda", compiled=False)
    assert len(result["takes"]) == 3 and shapes.ratio_of(result, "steady") == 0.5
    assert result["absent"]["Liger-Kernel"] == "no peer: AssertionError: rows of 16 are not supported"
    assert result["absent"]["QuACK"].startswith("no peer: AssertionError: scaled_softmax forward 4x16 float32, QuACK: ")
    slow["value"] = False
    assert len(shapes.measured(case, in_turns, 2, "cuda", compiled=False)["takes"]) == 1
    real["precast"] = refuses
    with pytest.raises(AssertionError, match="rows of 16"):
        shapes.measured(case, in_turns, 2, "cuda", compiled=False)


FAMILIES = {  # by name, a small shape; the names of the program are compared with it
    "bias_act": (2, 3, 7, 9),
    "upfirdn2d": (2, 3, 7, 9),
    "upfirdn2d_up": (2, 3, 7, 9),
    "upfirdn2d_down": (2, 3, 7, 9),
    "moe_permute": (5, 32, 2, 8),
    "moe_unpermute": (5, 32, 2, 8),
    "rotary_embedding": (5, 4, 2, 18),
    "rms_norm_rotary_embedding": (5, 4, 2, 16),
    "paged_decode_attention": (3, 21, 4, 2, 64),
    "cross_entropy": (5, 50),
    "linear_cross_entropy": (5, 32, 50),
    "causal_conv1d": (2, 16, 9),
}


def test_random_cases_of_families_follow_their_seed() -> None:
    cases = module("shapes_cases")
    first, again, other = (cases.drawn(seed, 30, "cuda", list(FAMILIES)) for seed in (1, 1, 2))
    assert first == again and first != other and len(first) == 30 * len(FAMILIES)
    assert cases.drawn(1, 30, "cuda", ["cross_entropy"]) == [one for one in first if one.op == "cross_entropy"]
    assert all(len(one.shape) == len(FAMILIES[one.op]) and min(one.shape) > 0 for one in first)
    assert {one.way for one in first if one.op == "paged_decode_attention"} == {"forward"}
    assert any(one.shape[3] % 2 for one in first if one.op == "bias_act"), "images of odd size"


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("op", "way"),
    [
        (op, way)
        for op in FAMILIES
        for way in ("forward", "training")
        if (op, way) != ("paged_decode_attention", "training")
    ],
)
def test_everybody_of_a_family_computes_the_same(op: str, way: str) -> None:
    cases, shapes = module("shapes_cases"), module("shapes")
    assert [*cases.FAMILIES] == [*FAMILIES]
    case = cases.Case(op, way, FAMILIES[op], "bfloat16", "a small one")
    given = cases.buffers(case, 2, "cpu")
    functions, _ = cases.functions(case, "cpu")
    reference = cases.call_of(functions["torch eager"], cases.in_float32(given), 0)()
    ours = cases.call_of(functions["precast"], given, 0)()
    shapes.check("precast", case, ours, reference)
    leaves = len(given.inputs[0]) + len(given.weights)
    assert len(ours) == len(reference) >= (1 + leaves if way == "training" else 1)
    assert cases.call_bytes(case) > 0
