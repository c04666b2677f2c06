"""The benchmarks' own arithmetic, and that their peers still fit the kernels that they borrow."""

from __future__ import annotations

import importlib
import json
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from precast._builder import catalogue, nvrtc, nvrtc_child
from precast._builder.cache import Cache
from precast.core.capability import GpuTarget
from tests.kit import fakes, spawn
from tests.kit import hosts as ex

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_a_ratio_above_one_means_that_we_are_better() -> None:
    from benchmarks.report import Row

    assert Row("time", 2.0, "s", "peer", 6.0).ratio == 3.0
    assert Row("share", 0.9, "share", "peer", 0.6, higher_is_better=True).ratio == pytest.approx(1.5)
    assert Row("alone", 2.0, "s").ratio is None


def test_medians_come_from_turns() -> None:
    from benchmarks.report import interleaved_medians

    order: list[str] = []
    values = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 5.0, 7.0])}

    def sample(name: str) -> float:
        order.append(name)
        return next(values[name])

    medians = interleaved_medians({"a": lambda: sample("a"), "b": lambda: sample("b")}, 3)
    assert medians == {"a": 2.0, "b": 5.0}
    assert order == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("value", "text"), [(0.00123456, "0.001235"), (7.0, "7.000"), (123.456, "123.5"), (5.0e9, "5,000,000,000")]
)
def test_numbers_are_printed_without_exponents(value: float, text: str) -> None:
    from benchmarks.report import number

    assert number(value) == text


def test_results_hold_the_ratio_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import report

    monkeypatch.setattr(report, "RESULTS", tmp_path)
    row = report.Row("what", 2.0, "s", "peer", 1.0)
    path = report.save(report.Report("name", "title", (row,)), {"cpu": "a fast one"})
    kept = json.loads(path.read_text())
    assert kept["rows"][0]["ratio"] == 0.5
    assert kept["host"] == {"cpu": "a fast one"}


def test_the_cost_of_a_release_is_computed_from_the_matrix() -> None:
    release_cost = importlib.import_module("benchmarks.release_cost")
    made = release_cost.cost(ROOT)
    assert json.loads((ROOT / "docs" / "benchmarks" / "release.json").read_text(encoding="utf-8")) == made, (
        "python -m benchmarks.release_cost docs/benchmarks/release.json writes it"
    )
    minutes = made["amounts"]["Minutes x cores"]["of"]
    assert minutes["precast"] == 25.3 < minutes["a wheel per cell, shared"] < minutes["a wheel per cell, alone"]


def test_the_cost_of_device_code_is_told_by_family_and_in_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = importlib.import_module("benchmarks.device_images")
    images = {GpuTarget.parse("sm_90"): fakes.cubin(90, 4000), GpuTarget.parse("compute_90"): fakes.ptx(90)}

    class Compiler:
        def compile(self, *_: object, ptx: bool, **__: object) -> nvrtc.Compiled:
            sum(range(2_000_000))  # time of a processor
            code, text = images.values()
            return nvrtc.Compiled(text if ptx else code, "", None, text)

    monkeypatch.setattr(nvrtc_child, "open_nvrtc", lambda _: Compiler())
    family, cache = catalogue.get("rms_norm"), Cache(tmp_path)
    made = measure.cost("cu130", family, tuple(images), ex.nvrtc("13.0.88"), cache)
    assert (made.label, made.family, made.images) == ("cu130", "rms_norm", 2)
    assert made.image_bytes == sum(map(len, images.values())) and 0 < made.packed_bytes < made.image_bytes
    assert made.compile_s > 0 and made.pack_s >= 0
    whole = measure.total("cu130", [made, made])
    assert (whole.images, whole.packed_bytes) == (4, 2 * made.packed_bytes)
    assert whole.compile_s == pytest.approx(2 * made.compile_s) and len(str(whole)) == len(measure.HEADING)


def test_amounts_are_drawn_to_scale() -> None:
    plots = importlib.import_module("benchmarks.plots")
    asked = {"Size": {"unit": "MB", "of": {"precast": 10, "a peer": 40}}}
    ((name, svg),) = plots.amount_charts({"name": "made", "title": "t", "facts": "f", "ops": "op", "amounts": asked})
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]
    assert name == "bars-made.svg" and 'data-ops="op"' in svg and "40 MB" in svg
    assert widths[0] == pytest.approx(widths[1] / 4, abs=0.1)


def test_the_file_of_a_cold_start_has_both_parts() -> None:
    cold = importlib.import_module("benchmarks.cold_start")
    made = cold.times({"precast": (1.0, 2.5), "kernels": (4.0, 1.0)}, "a machine")
    assert list(made["seconds"].values()) == [{"precast": 3.5, "kernels": 5.0}, {"precast": 2.5, "kernels": 1.0}]


def test_a_contestant_starts_from_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = importlib.import_module("benchmarks.cold_start")
    seen: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(cold.subprocess, "run", lambda command, **_: seen.append(("pip", command)))
    monkeypatch.setattr(cold, "run", lambda program, *arguments, env: seen.append((program, [*arguments, str(env)])))
    parts = cold.first_result(cold.Contestant(("ninja",), "program", ("{}", "csrc")), tmp_path, tmp_path)
    (_, pip), (program, (build, csrc, env)) = seen
    assert "--no-index" in pip and pip[-1] == "ninja" and program == "program" and csrc == "csrc"
    assert build.endswith("/build") and "PRECAST_CACHE_DIR" in env and min(parts) >= 0 and not any(tmp_path.iterdir())


def test_an_installation_without_prebuilt_files_is_refused(tmp_path: Path) -> None:
    from benchmarks import child

    with pytest.raises(SystemExit, match="nothing prebuilt in"):
        child.use_installation(tmp_path)


def test_an_unknown_benchmark_is_refused() -> None:
    done = spawn.python("-m", "benchmarks", "speed", cwd=ROOT, status=2)
    assert "no benchmark is called speed; there are start, call" in done.stderr


def test_a_loader_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import loaders

    monkeypatch.setattr(loaders.importlib.util, "find_spec", lambda package: None)
    ready, notes = loaders.peers(tmp_path, "-O3", tmp_path / "peer.so")
    assert ready == {} and [note.partition(":")[0] for note in notes] == [
        "tvm_ffi.load_module, as flashinfer",
        "kernels.get_local_kernel",
    ]
    assert all("not measured" in note for note in notes) and not list(tmp_path.iterdir())


def test_the_ranks_are_judged_by_pairs_so_that_one_busy_moment_does_not_decide() -> None:
    from benchmarks.ranks import summary

    steady = [{"seconds": 2.0, "waiter": 0.06}] * 5
    row, _ = summary(one=steady, many=[{"seconds": s, "waiter": 0.07} for s in (2.2, 2.4, 9.0, 2.3, 2.1)])
    assert row.ratio == pytest.approx(2.0 / 2.3)
    drifting = [{"seconds": s, "waiter": 0.06} for s in (2.0, 8.0, 4.0)]
    row, cost = summary(one=drifting, many=[{"seconds": s * 1.2, "waiter": 0.05} for s in (2.0, 8.0, 4.0)])
    assert row.ratio == pytest.approx(1 / 1.2) and cost.ours == pytest.approx(50.0)


def test_the_slower_of_two_sharding_ranks_counts() -> None:
    from benchmarks.sharded import CASES, summary

    fast, slow = ({case: [[2.0 * by] * 3, [8.0 * by] * 3] for case in CASES} for by in (1, 2))
    rows = summary([fast, slow])
    assert [(row.ours, row.peer, row.ratio) for row in rows] == [(4e3, 16e3, 4.0)] * len(CASES)


def test_a_figure_of_several_processes_is_the_median_and_a_peer_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import processes

    answers = iter(json.dumps({"step": {"precast": (s, 1.0), "peer": (3 * s, r)}}) for s, r in ((1, 3), (9, 2), (2, 4)))
    monkeypatch.setattr(processes, "prebuilt_installation", lambda: ROOT)
    monkeypatch.setattr(processes, "run", lambda *_, **__: next(answers))
    found = processes.medians("any")
    assert found == {"step": {"precast": (2, 1.0), "peer": (6, 3)}}
    (row,) = processes.rows(found, "ms", {("step", "peer"): ">= 2"})
    assert (row.ours, row.peer, row.ratio, row.target) == (2e3, 6e3, 3, ">= 2")


@pytest.mark.torch
@pytest.mark.compiler
def test_the_contestants_of_the_cpu_optimizers_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from benchmarks import cpu_optim

    monkeypatch.setattr(cpu_optim, "ELEMENTS", 40)
    for contestants in (cpu_optim.big, cpu_optim.half):
        assert set(cpu_optim.compare(contestants(), 2)) >= {"precast"}
    ends = []
    for name in ("precast", cpu_optim.FUSED, cpu_optim.FOREACH):
        params = cpu_optim.parameters(3, 64)
        cpu_optim.adamw(params)[name]()
        ends.append(torch.cat([param.detach() for param in params]))
    assert torch.allclose(ends[0], ends[1], rtol=1e-6) and torch.allclose(ends[1], ends[2], rtol=1e-6)
    assert len(cpu_optim.others(64)) == 3


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("name", ["binding.cpp", pytest.param("norm_binding.cpp", marks=pytest.mark.long)])
def test_a_pybind_peer_compiles(name: str) -> None:
    import torch

    include = Path(torch.__file__).parent / "include"
    folders = [ROOT / "csrc", include, include / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include")]
    options = ["-std=c++20", "-fsyntax-only", "-DTORCH_EXTENSION_NAME=peer", "-DPRECAST_CPU_LEVEL=baseline"]
    source = ROOT / "benchmarks" / "peers" / name
    spawn.run("g++", *options, *(f"-I{folder}" for folder in folders), source)  # fails if it does not compile


@pytest.mark.torch
def test_the_peer_of_the_cold_build_borrows_kernels_that_are_there(tmp_path: Path) -> None:
    from benchmarks import cold_jit

    binding, *borrowed = cold_jit.peer_arguments(tmp_path)[1:]
    assert Path(binding).is_file() and len(borrowed) == 2
    for source in map(Path, borrowed):
        (included,) = re.findall(r'#include "(.+)"', source.read_text())
        assert (ROOT / "csrc" / included).is_file(), included


@pytest.mark.torch
def test_the_table_of_whole_models_has_a_row_for_each_way() -> None:
    from benchmarks.adopt import Result, table

    row = Result("untouched", 12345.6, 20.04, 54321.0, (11.8, 11.25), 800.0, 4.0, 0.5, "")
    assert table([row]).splitlines()[2] == "| untouched | 12,346 | 20.0 | 54,321 | 800 | 4.0 | 0.5 | 11.2500 |"


@pytest.mark.torch
@pytest.mark.compiler
def test_the_contestants_of_the_losses_compute_the_same_gradients() -> None:
    import torch

    from benchmarks import losses

    half: Any = {"dtype": "float16", "scale": 4.0}
    compared = [
        losses.from_logits(6, 50, "cpu", lambda function: function),
        losses.from_logits(6, 50, "cpu", lambda function: function, in_place=True, **half),
        losses.from_hidden_states(6, 16, 50, "cpu"),
        losses.from_hidden_states(6, 16, 50, "cpu", **half),
    ]
    for runs in compared:
        runs.pop(losses.PRODUCTS, None)
        expected = runs["torch eager"]()
        for name, run in runs.items():
            for one, other in zip(run(), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-4, msg=name)
    for form, found in losses.errors((64, 16, 500), "cpu", "float16", losses.SCALE).items():
        assert 0 < found["precast"] <= 1.02 * found["torch eager"] < 1e-2, form
