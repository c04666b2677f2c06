"""``python -m benchmarks.shapes --json FILE``: the row ops at shapes that models have, and at random ones.

Everybody is timed in CUDA graphs, cold and steady (graphs.py), and takes turns; with ``--device cpu`` at the shapes of
cpu_shapes.toml, by calls (host_turns.py). A case in which the best peer is more
than 3 % faster is measured three times; its ratios are the medians of the three. The list of shapes.toml and 40 random
cases run in parts: ``--part 1/4`` is the first of four, with the same ``--seed`` for all parts of a run, and
``--table FILE...`` puts the parts together.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import child, graphs, host_turns, liger, quack, shapes_cases
from benchmarks.families import FAMILIES
from benchmarks.graphs import COLD, STEADY, Samples
from benchmarks.other_site import BESIDE, OtherSite
from benchmarks.report import host_facts
from benchmarks.shapes_cases import COMPILED, EAGER, OURS, Case

Json = dict[str, Any]
Takes = Callable[[Any], Samples]

EVEN = 0.97  # of the best peer's speed
RANDOM = {"cuda": 40, "cpu": 30}
COMPILERS = 8  # processes that compile ahead
FLUSH_BYTES = 512 << 20  # several times the L2 cache of any GPU
PEER_ERRORS = (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError)


def ratios(samples: Samples) -> dict[str, float]:
    """By measure: the time of the best peer divided by ours. Above one, ours is the faster."""
    medians = {measure: {name: statistics.median(us) for name, us in of.items()} for measure, of in samples.items()}
    return {measure: min(of[name] for name in peers(of)) / of[OURS] for measure, of in medians.items()}


def peers(of: Collection[str]) -> list[str]:
    """The contestants that are not precast."""
    return [name for name in of if name not in (OURS, BESIDE)]


def gain_of(result: Json, measure: str) -> float:
    """The time of the other installation divided by ours; one without such an installation."""
    found = [take[measure] for take in result["takes"] if BESIDE in take[measure]]
    gains: list[float] = [statistics.median(of[BESIDE]) / statistics.median(of[OURS]) for of in found]
    return statistics.median(gains or [1.0])


def ratio_of(result: Json, measure: str) -> float:
    """The ratio of a case: the median of those of its takes."""
    return statistics.median(ratios(take)[measure] for take in result["takes"])


def check(name: str, case: Case, result: Sequence[Any], reference: Sequence[Any]) -> None:
    """Raises AssertionError unless the results agree with torch eager's in float32 within what the dtype allows."""
    import torch

    for one, other in zip(result, reference, strict=True):
        kinds = {getattr(torch, case.dtype)} | ({torch.float32} if case.op in FAMILIES else set())  # weights, losses
        assert one.dtype in kinds, f"{case.text}, {name}: {one.dtype}"
        atol = 2e-2 * float(other.abs().max())
        torch.testing.assert_close(
            one.float(), other, rtol=2e-2, atol=atol, msg=lambda text: f"{case.text}, {name}: {text}"
        )


def measured(
    case: Case, takes_of: Takes, sets: int, device: str, *, compiled: bool, beside: OtherSite | None = None
) -> Json:
    """All takes of a case. A peer that cannot do it, or does it wrong, is named with the reason; ours must be right."""
    given = shapes_cases.buffers(case, sets, device)
    functions, absent = shapes_cases.functions(case, device)
    if compiled:
        functions[COMPILED] = shapes_cases.compiled(functions[EAGER])
    reference = shapes_cases.call_of(functions[EAGER], shapes_cases.in_float32(given), 0)()
    contestants: dict[str, Any] = {}
    for name, function in functions.items():
        calls = [shapes_cases.call_of(function, given, index) for index in range(len(given.inputs))]
        try:
            if name != EAGER:  # which adds up rows in half precision on the CPU: further off than any other
                check(name, case, calls[0](), reference)
            contestants[name] = graphs.captured(calls) if device == "cuda" else calls
        except PEER_ERRORS as failure:
            if name in (OURS, EAGER):
                raise
            absent[name] = f"no peer: {type(failure).__name__}: {str(failure).strip().splitlines()[0][:160]}"
    if beside is not None:
        contestants[BESIDE] = [beside.open(case)]
    takes = [takes_of(contestants)]
    if min(ratios(takes[0]).values()) < EVEN:
        takes += [takes_of(contestants) for _ in range(2)]
    return {**asdict(case), "absent": absent, "sets": len(given.inputs), "takes": rounded(takes)}


def rounded(takes: list[Samples]) -> list[Samples]:
    """Samples to a hundredth of a microsecond, more than CUDA's events resolve."""
    return [
        {measure: {name: [round(us, 2) for us in some] for name, some in of.items()} for measure, of in take.items()}
        for take in takes
    ]


def line(result: Json) -> str:
    """One case: both ratios, our time and the best peer's with their spreads, steady."""
    take = result["takes"][-1][STEADY]
    best = min(peers(take), key=lambda name: statistics.median(take[name]))
    times = ", ".join(
        f"{name} {statistics.median(take[name]):.1f} us +-{100 * graphs.spread(take[name]):.1f} %"
        for name in (OURS, best)
    )
    text = Case(*(result[name] for name in ("op", "way", "shape", "dtype", "model"))).text
    gain = f", {gain_of(result, STEADY):.2f} times the other precast" if BESIDE in take else ""
    return f"{ratio_of(result, STEADY):6.2f} {ratio_of(result, COLD):6.2f}  {text}: {times}{gain}"


def summary(results: Sequence[Json]) -> Iterator[str]:
    """A line for each op and way: cases, share at EVEN or better, worst, geometric mean; steady, then cold."""
    yield f"{'':53}      steady                cold"
    yield f"{'':53}cases  even  worst   mean   even  worst   mean"
    groups: dict[str, list[Json]] = {}
    for result in results:
        kind = "random" if result["model"] == "random" else "listed"
        for name in (f"{kind} {result['op']} {result['way']}", f"{kind}, all, {result['way']}"):
            groups.setdefault(name, []).append(result)
    for name in sorted(groups):
        cells = []
        for measure in (STEADY, COLD):
            found = [ratio_of(result, measure) for result in groups[name]]
            even = sum(ratio >= EVEN for ratio in found) / len(found)
            cells.append(f"{even:6.2f} {min(found):6.2f} {statistics.geometric_mean(found):6.2f}")
        yield f"{name:53}{len(groups[name]):5} {' '.join(cells)}"


def table(results: Sequence[Json]) -> Iterator[str]:
    """The cases that fall short, the worst first, then the summary."""
    short = [result for result in results if min(ratio_of(result, STEADY), ratio_of(result, COLD)) < EVEN]
    yield f"The best peer's time divided by ours, steady and cold; {len(short)} of {len(results)} cases below {EVEN}:"
    yield from (line(result) for result in sorted(short, key=lambda result: ratio_of(result, STEADY)))
    yield ""
    yield from summary(results)
    missing = {f"{name}: {why}" for result in results for name, why in result["absent"].items()}
    yield from sorted(missing)


def compile_ahead(arguments: list[str]) -> None:
    """Compile in several processes at once what torch.compile then finds in its cache.

    What its autotuning chose is removed: these processes share the GPU, so their times mean little.
    """
    command = [sys.executable, "-m", "benchmarks.shapes", *arguments, "--compile-only"]
    running = [subprocess.Popen([*command, str(index)], stdout=subprocess.DEVNULL) for index in range(COMPILERS)]
    failed = [process.args for process in running if process.wait() != 0]
    if failed:
        print(f"{len(failed)} of {COMPILERS} compiling processes failed; their cases are compiled one by one")
    for chosen in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.best_config"):
        chosen.unlink()


def compile_only(cases: Sequence[Case], device: str) -> None:
    """Call torch.compile's function of each case once."""
    for case in cases:
        functions, _ = shapes_cases.functions(case, device)
        shapes_cases.call_of(shapes_cases.compiled(functions[EAGER]), shapes_cases.buffers(case, 1, device), 0)()


def run(
    cases: Sequence[Case],
    results: Json,
    path: Path,
    device: str,
    *,
    compiled: bool,
    until: float,
    beside: OtherSite | None = None,
) -> None:
    """Measure the cases one by one while there is time, keeping the file complete."""
    import torch

    takes_of: Takes = host_turns.in_turns
    if device == "cuda":
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
        takes_of = functools.partial(graphs.in_turns, flush=flush)
    for index, case in enumerate(cases):
        if time.monotonic() > until:
            results["left"] = [other.text for other in cases[index:]]
            print(f"no time is left for {len(cases) - index} cases, from {case.text} on")
            break
        sets = 1
        if device == "cuda":
            l2 = torch.cuda.get_device_properties(0).L2_cache_size
            sets = graphs.sets_for(shapes_cases.call_bytes(case), l2)
        results["cases"].append(measured(case, takes_of, sets, device, compiled=compiled, beside=beside))
        print(line(results["cases"][-1]), flush=True)
        path.write_text(json.dumps(results) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the part as two numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the samples go")
    parser.add_argument("--site", type=Path, help="measure what is installed in this folder (pip install --target)")
    parser.add_argument("--beside", type=Path, help="another such folder, such as that of an older commit (CPU only)")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of random cases")
    parser.add_argument("--device", choices=tuple(RANDOM), default="cuda", help="where the ops run")
    parser.add_argument("--random", type=int, metavar="COUNT", help="how many random cases")
    parser.add_argument(
        "--family", action="append", choices=(*FAMILIES, "all"), help="the listed and the random cases of it alone"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose text has this")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many seconds")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--compile-only", type=int, metavar="I", help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="print the table of these files")
    options = parser.parse_args(arguments)
    part, _, parts = options.part.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        parser.error(f"--part is {options.part}; needed two numbers such as 1/4")
    if options.table is None and options.json is None and options.compile_only is None:
        parser.error("needed --json FILE, for the samples, or --table FILE...")
    if options.beside is not None and options.device != "cpu":
        parser.error("--beside needed --device cpu")
    options.numbers = (int(part), int(parts))
    options.family = list(FAMILIES) if "all" in (options.family or ()) else options.family or []
    options.random = RANDOM[options.device] if options.random is None else options.random
    return options


def main() -> int:
    """Measure, print, keep; or print what was kept."""
    begin, options = time.monotonic(), parse(None)
    if options.table is not None:
        kept = [json.loads(path.read_text(encoding="utf-8")) for path in options.table]
        print("\n".join(table([result for results in kept for result in results["cases"]])))
        return 0
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the processes are the threads
    cases = shapes_cases.drawn(options.seed, options.random, options.device, options.family)
    if options.family and options.device == "cuda":
        cases = [*shapes_cases.listed_of(options.family), *cases]
    elif not options.family:
        cases = [*shapes_cases.listed(options.device), *cases]
    cases = shapes_cases.part_of([case for case in cases if options.only in case.text], *options.numbers)
    if options.compile_only is not None:
        child.use_installation(options.site)
        compile_only(cases[options.compile_only :: COMPILERS], options.device)
        return 0
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        site = (options.site or child.build_installation(Path(folder))).resolve()
        child.use_installation(site)
        versions = {"liger-kernel": liger.installed(), "quack-kernels": quack.installed()}
        results: Json = {"facts": {**host_facts(), **versions}, "seed": options.seed, "part": options.part, "cases": []}
        print(f"{len(cases)} cases; --seed {options.seed}; {results['facts']}", flush=True)
        if not options.without_compile:
            same = ["--site", str(site), "--part", options.part, "--seed", str(options.seed), "--only", options.only]
            same += [word for family in options.family for word in ("--family", family)]
            compile_ahead([*same, "--random", str(options.random), "--device", options.device])
            print(f"compiled ahead after {time.monotonic() - begin:.0f} s", flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        compiled, until = not options.without_compile, begin + options.seconds
        beside = OtherSite(options.beside) if options.beside is not None else None
        run(cases, results, options.json, options.device, compiled=compiled, until=until, beside=beside)
        if beside is not None:
            beside.close()
    print("\n".join(table(results["cases"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
