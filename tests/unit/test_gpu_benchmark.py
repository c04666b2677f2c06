"""``benchmarks.gpu`` without a GPU: the cases on small CPU tensors, the table, and the plots of made-up figures."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPY, SECOND = "copy_ of as many bytes", "torch.compile, second shape"


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def made_up() -> dict[str, Any]:
    """A copy rate of 4 GB in a millisecond, a launch of 10 us, and one op at two sizes."""

    def case(moved: int, **medians: float) -> dict[str, Any]:
        samples = {name.replace("torch_eager", "torch eager"): [0.9 * ms, ms, 1.2 * ms] for name, ms in medians.items()}
        shape = [moved // 1_000_000, 1000]
        absent = {"Liger-Kernel": "no peer: it has no such op"}
        return {
            "op": "rms_norm",
            "shape": shape,
            "dtype": "bfloat16",
            "moved_bytes": moved,
            "absent": absent,
            "samples_ms": samples,
        }

    return {
        "schema": 1,
        "facts": {"gpu": "a GPU", "torch": "2.13.0", "date": "2026-11-21", "build": None, "commit": "fedcba"},
        "copy": {"bytes": 4_000_000_000, "samples_ms": [1.0, 1.0, 1.0]},
        "launch": {"samples_ms": [0.01, 0.01, 0.01]},
        "cases": [
            case(400_000_000, precast=0.125, torch_eager=0.25, **{COPY: 0.2, SECOND: 0.5}),
            case(4_000_000, precast=0.02, torch_eager=0.04, **{COPY: 0.018}),
        ],
    }


def test_the_table_has_every_label_beside_peers_and_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = (importlib.import_module(f"benchmarks.{name}") for name in ("gpu_table", "asked"))
    wanted = {(400, 1000): asked.Asked(0.75, 2.1, second=3.9), (4, 1000): asked.Asked(copy=0.97)}
    monkeypatch.setattr(asked, "LARGE", {"rms_norm": wanted})
    first, last = made_up(), made_up()
    first["facts"]["build"] = {"label": "cu121", "commit": "0123456789abcdef"}
    first["cases"][0]["samples_ms"]["precast"] = [0.16, 0.16, 0.16]
    lines = list(table.table([first, last]))
    peers = "times the best peer | best peer | times its second shape"
    assert lines[0] == f"|  | cu121 | ours | beside a copy | {peers} | asked for |"
    rest = ["4.00", "share 0.75, peer 2.1, second shape 3.9"]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:4]] == [
        ["rms_norm 400x1000", "**0.625** of 0.75", "0.800", "1.60", "**2.00** of 2.10", "0.400 (torch eager)", *rest],
        ["rms_norm 4x1000", "0.050", "0.050", "**0.900** of 0.97", "2.00", "0.025 (torch eager)", "", "copy 0.97"],
    ]
    assert table.cell(0.9596, 0.96) == "**0.9596** of 0.96"
    assert "cu121: commit 012345678, a GPU, torch 2.13.0, 2026-11-21; copy_ of 4.3 GB moves 4,000 GB/s" in lines[4]
    assert lines[-1] == "\nLiger-Kernel: no peer: it has no such op."
    del first["cases"][1]
    with pytest.raises(ValueError, match="the files hold different cases"):
        list(table.table([first, last]))


def test_what_is_asked_is_of_shapes_that_are_measured() -> None:
    asked, cases = (importlib.import_module(f"benchmarks.{name}") for name in ("asked", "gpu_cases"))
    measured = {shape for family in cases.FAMILIES.values() for shape in family.shapes}
    for op, shapes in asked.LARGE.items():
        assert set(shapes) <= measured, op
        assert all(asked.asked(op, shape) is shapes[shape] for shape in shapes)
    assert asked.asked("rms_norm", asked.SMALL) == asked.Asked(copy=0.97) and asked.SMALL in measured
    assert asked.asked("rms_norm", (3, 5)) == asked.Asked()


def test_a_bar_is_the_share_of_the_copy_rate_and_ours_comes_first() -> None:
    plots = importlib.import_module("benchmarks.plots")
    table = importlib.import_module("benchmarks.gpu_table")
    results = made_up()
    ours, peer = plots.bars_of(table.shares(results, results["cases"][0]))
    assert (ours.name, ours.words, ours.ours) == ("precast", "80 %", True)
    assert (peer.name, peer.words, peer.ours) == ("torch eager", "40 %", False)
    svg = dict(plots.gpu_charts(results))["bars-rms_norm.svg"]
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1) and 'data-ops="rms_norm"' in svg
    assert "400 x 1000: precast 80 %, torch eager 40 %" in svg


def test_each_op_is_a_chart_and_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    plots = importlib.import_module("benchmarks.plots")
    one, overview = plots.draw(made_up(), tmp_path)
    assert (one.name, overview.name) == ("bars-rms_norm.svg", "bars-overview.svg")
    before = one.read_bytes()
    assert plots.draw(made_up(), tmp_path) == [one, overview] and one.read_bytes() == before


def test_the_kept_charts_are_those_of_the_kept_figures(tmp_path: Path) -> None:
    plots, kept = importlib.import_module("benchmarks.plots"), ROOT / "docs" / "benchmarks"
    files = [path for path in kept.glob("*.json") if path.stem not in ("h200-cu121", "h200-cu128")]
    for path in files:
        plots.draw(json.loads(path.read_text(encoding="utf-8")), tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in kept.glob("*.svg")}, (
        f"python -m benchmarks.plots {' '.join(path.relative_to(ROOT).as_posix() for path in files)} draws them"
    )
    assert sum(map(len, drawn.values())) < 150_000


def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = importlib.import_module("benchmarks.norm")
    turns: list[str] = []

    def samples(run: Callable[[], str], flush: object, repeats: int) -> list[float]:
        turns.append(run())
        return [10.0 if len(turns) == 1 else 1.0] * repeats  # the first turn is disturbed

    monkeypatch.setattr(norm, "samples_ms", samples)
    runs = {"one": lambda: "one", "other": lambda: "other"}
    assert {len(found) for found in norm.in_turns_ms(runs, None).values()} == {norm.REPEATS}
    assert turns == ["one", "other"] * norm.ROUNDS
    turns.clear()
    assert norm.medians_ms(runs, None) == {"one": 1.0, "other": 1.0}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Measures a family on small CPU tensors: nothing is timed or compiled."""
    torch = pytest.importorskip("torch")
    gpu, cases = (importlib.import_module(f"benchmarks.{name}") for name in ("gpu", "gpu_cases"))
    monkeypatch.setattr(cases, "_random", lambda *shape: torch.randn(*shape, dtype=torch.bfloat16))
    monkeypatch.setattr(gpu, "copy_of", lambda moved: lambda: None)
    monkeypatch.setattr(cases.liger, "installed", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    real = {name: getattr(torch, name) for name in ("rand", "ones")}
    for name, function in real.items():
        monkeypatch.setattr(torch, name, lambda *a, function=function, **k: function(*a, **{**k, "device": "cpu"}))

    def samples(run: Callable[[], object], flush: object, repeats: int) -> list[float]:
        run()
        return [1.0, 2.0, 3.0]

    monkeypatch.setattr(importlib.import_module("benchmarks.norm"), "samples_ms", samples)

    def measure(name: str, *, compiled: bool) -> list[dict[str, Any]]:
        family = cases.FAMILIES[name]
        shape = (2, 3, 16, 16) if len(family.first_shape) == 4 else (8, 32)
        smaller = cases.Family(family.make, (shape,), shape)
        return list(gpu.measure(smaller, shape, None, compiled=compiled))

    return measure


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["norm", "layer_norm", "activations", "softmax", "rotary"])
def test_every_contestant_computes_the_same(
    small: Callable[..., list[dict[str, Any]]], name: str, compiled: bool
) -> None:
    results = small(name, compiled=compiled)
    assert results and len({result["op"] for result in results}) == len(results)
    wanted = {"precast", "torch eager"}
    compilers = {"torch.compile", "torch.compile, second shape"}
    for result in results:
        copy = {"copy_ of as many bytes"}
        assert set(result["samples_ms"]) == (wanted | compilers if compiled else wanted) | copy
        assert set(result["cached_samples_ms"]) == set(result["samples_ms"]) - {"torch.compile, second shape"}
        assert "Liger-Kernel" in result["absent"] and result["moved_bytes"] > 0
    json.dumps(results)


@pytest.mark.torch
def test_a_wrong_result_is_found_before_it_is_timed() -> None:
    import torch

    gpu, cases = (importlib.import_module(f"benchmarks.{name}") for name in ("gpu", "gpu_cases"))
    right, wrong = (lambda: torch.ones(4, 4)), (lambda: torch.ones(4, 4) * 1.5)
    for name in ("precast", "torch.compile"):
        runs = {"precast": right, "torch.compile": right, "torch eager": right, name: wrong}
        with pytest.raises(AssertionError, match=f"rms_norm, {name}: "):
            gpu.check(cases.Case("rms_norm", (4, 4), 32, runs))


@pytest.mark.torch
@pytest.mark.compiler
def test_everybody_writes_the_same_to_a_paged_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    kv_cache = importlib.import_module("benchmarks.kv_cache")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    calls = kv_cache.contestants(3, "cpu")
    assert list(calls) == ["precast", "torch eager", "torch.compile"]
    for call in calls.values():
        call()
    right, wrong = (lambda packed, *pair: pair[0].fill_(1)), (lambda packed, *pair: pair[0].fill_(2))
    given = (torch.zeros(2), (torch.zeros(2), torch.zeros(2)))
    kv_cache.check({"precast": right, "torch eager": right}, *given)
    with pytest.raises(AssertionError, match="not close"):
        kv_cache.check({"precast": right, "torch eager": wrong}, *given)


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_all_attend_to_the_same_caches() -> None:
    import torch

    decode = importlib.import_module("benchmarks.decode_attention")
    functions = decode.contestants(decode.Case(2, 140, 8, peers=("torch SDPA", "torch flex")), "cpu")
    assert list(functions) == ["precast", "torch SDPA", "torch flex"]
    assert functions["precast"]().shape == (2, decode.HEADS, decode.WIDTH)
    mixed = decode.Case(3, 128, 8, mixed=True, peers=("torch flex",))
    assert sum(mixed.lengths()) in range(380, 389) and max(mixed.lengths()) == 209
    assert list(decode.contestants(mixed, "cpu")) == ["precast", "torch flex"]
    with pytest.raises(AssertionError, match="not close"):
        decode.check({**functions, "torch SDPA": lambda: torch.ones(2, decode.HEADS, decode.WIDTH).bfloat16()})


@pytest.mark.torch
@pytest.mark.compiler
def test_each_step_of_the_delta_rule_has_other_states(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = importlib.import_module("benchmarks.delta_rule")
    monkeypatch.setattr(delta, "POOL_BYTES", 0)
    call = delta.step(delta.Step(2, 16, tokens=3), "cpu")
    first, second, third = (call() for _ in range(3))  # two turns of states that begin with zeros
    assert first.shape == (2, 3, 16, delta.WIDTH)
    assert first.equal(second) and not first.equal(third)
    (ours,) = delta.prefill(delta.Prefill(1, 5, 32), "cpu").values()
    assert ours()[0].shape == (1, 5, 32, delta.WIDTH)
