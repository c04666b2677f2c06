"""``python -m tests.gpu check``: everything that a GPU must say about a commit, in calls that go on where one stopped.

A case is a command of its own with a time that it may take: one that takes longer is killed with all that it started,
and is a failure. What a case said stands in the folder of the state, beside the results, which the next call reads. A
result counts for its commit and kind of GPU alone; what failed runs again. The most telling cases come first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = "tests/gpu"
# A part of a check is about this many cases: a minute on an H100 with 16 cores.
HOSTILE_PARTS, HISTORIES, HISTORY_PARTS = 6, 1000, 4
# What takes minutes on its own runs in parts of its own; the rest of tests/ops is dealt out by size.
OPS_PARTS = 6
BENCHMARKS = ("losses", "norm", "softmax", "moe", "decode_attention", "fused_adam", "norm_rotary")


@dataclass(frozen=True)
class Case:
    """One command, the seconds that it may take, and whether it needs a second GPU."""

    name: str
    command: tuple[str, ...]
    seconds: int
    gpus: int = 1


@dataclass(frozen=True)
class Result:
    """What became of a case: ``ok``, ``failed`` or ``hung``, the line that says how many, and where the rest stands."""

    name: str
    outcome: str
    seconds: float
    said: str
    log: str


@dataclass(frozen=True)
class Machine:
    """What was checked where: results of another commit or kind of GPU say nothing here."""

    commit: str
    gpu: str
    gpus: int
    torch: str


def machine(commit: str | None = None, root: Path = ROOT) -> Machine:
    """Ask git for the commit, unless it is given, and a child process for the GPUs."""
    source = (
        "import json, torch; n = torch.cuda.device_count(); "
        "print(json.dumps([torch.cuda.get_device_name() if n else '', n, torch.__version__]))"
    )
    gpu, count, version = json.loads(subprocess.check_output([sys.executable, "-c", source], text=True))
    if commit is None:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        commit = subprocess.check_output(command, text=True).strip()
    return Machine(commit, gpu, count, version)


def cases(wheel: Path | None, jobs: int, root: Path = ROOT) -> Iterator[Case]:
    """All cases, the most telling ones first."""
    python = sys.executable
    if wheel is not None:
        yield Case("wheel: prebuilt code", (python, f"{GPU}/run.py", str(wheel)), 240)
    for part, files in enumerate(dealt(root), 1):
        yield Case(f"tests: ops {part} of {OPS_PARTS}", _pytest(jobs, *files), 300)
    # What is replaced in models, in hostile ones too, and the losses in loops of training.
    models = ("tests/adopt", "tests/hostile/test_adopting.py")
    yield Case("tests: adopt", _pytest(jobs, *models, "tests/ops/test_losses_in_training.py"), 300)
    others = ("tests", "--ignore=tests/ops", "--ignore=tests/wheel", *(f"--ignore={path}" for path in models))
    yield Case("tests: others", _pytest(jobs, *others), 300)
    for part in range(1, HOSTILE_PARTS + 1):
        command = (python, "-m", "tests.hostile", "--device", "cuda", "--jobs", str(jobs))
        yield Case(f"hostile {part} of {HOSTILE_PARTS}", (*command, "--part", f"{part}/{HOSTILE_PARTS}"), 240)
    for part in range(HISTORY_PARTS):
        size = HISTORIES // HISTORY_PARTS
        command = (python, "-m", "tests.ops.histories", "--device", "cuda", "--jobs", str(jobs))
        numbers = ("--first", str(part * size), "--count", str(size))
        yield Case(f"histories {part + 1} of {HISTORY_PARTS}", (*command, *numbers), 240)
    if wheel is not None:
        yield Case("attacks", (python, f"{GPU}/attacks.py", str(wheel)), 300)
        yield Case("ranks", (python, f"{GPU}/ranks.py", str(wheel)), 300)
        yield Case("wheel: two GPUs", (python, f"{GPU}/run.py", "--two-gpus", str(wheel)), 120, gpus=2)
    for name in BENCHMARKS:
        yield Case(f"beside peers: {name}", (python, "-m", "benchmarks", name), 300)


def dealt(root: Path = ROOT) -> list[list[str]]:
    """The files of ``tests/ops`` in parts of like size, each file in one of them."""
    parts: list[list[str]] = [[] for _ in range(OPS_PARTS)]
    sizes = [0] * OPS_PARTS
    files = sorted((root / "tests/ops").glob("test_*.py"), key=lambda path: (-path.stat().st_size, path.name))
    for path in files:
        least = sizes.index(min(sizes))
        parts[least].append(path.relative_to(root).as_posix())
        sizes[least] += path.stat().st_size
    return parts


def _pytest(jobs: int, *arguments: str) -> tuple[str, ...]:
    # pytest-benchmark warns about several processes, where it is installed.
    options = ("-q", "-m", "gpu", "-n", str(jobs), "-p", "no:cacheprovider", "-p", "no:benchmark")
    return (sys.executable, "-m", "pytest", *options, *arguments)


def run(case: Case, logs: Path, env: Mapping[str, str], root: Path = ROOT) -> Result:
    """Run a case with what it starts in a process group, which ends with it."""
    log = logs / (re.sub(r"\W+", "-", case.name) + ".log")
    started = time.monotonic()
    with log.open("wb") as out:
        child = subprocess.Popen(
            case.command, cwd=root, env=dict(env), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = child.wait(case.seconds)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):  # nothing that it started is left
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    outcome = "hung" if status is None else "ok" if status == 0 else "failed"
    # pytest gives 5 where no test fits: a part may have none for a GPU.
    if status == 5 and "pytest" in case.command:
        outcome = "ok"
    said = lines[-1].strip(" =") if lines else f"nothing, status {status}"
    if status is None:
        said = f"no end after {case.seconds} s; last line: {said}"
    return Result(case.name, outcome, round(time.monotonic() - started, 1), said, log.name)


def known(state: Path, here: Machine) -> dict[str, Result]:
    """The results of earlier calls that count here."""
    path = state / "results.json"
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    if Machine(**kept["machine"]) != here:
        return {}
    return {one["name"]: Result(**one) for one in kept["results"]}


def keep(path: Path, here: Machine, results: Sequence[Result]) -> None:
    """Write the results, whole or not at all."""
    document = {"schema": 1, "machine": asdict(here), "results": [asdict(one) for one in results]}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def check(todo: Sequence[Case], here: Machine, state: Path, seconds: float, root: Path = ROOT) -> list[Result]:
    """Run what has no good result yet and still fits into ``seconds``; all results, in the order of the cases."""
    found = known(state, here)
    times = {name: one.seconds for name, one in found.items()}
    last = time.monotonic() + seconds
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}
    for case in todo:
        if case.gpus > here.gpus or (case.name in found and found[case.name].outcome == "ok"):
            continue
        # A case that was not run yet is begun while half of the time that it may take is left.
        if last - time.monotonic() < times.get(case.name, case.seconds / 2):
            continue
        found[case.name] = run(case, state, env, root)
        keep(state / "results.json", here, list(found.values()))  # those of cases that --only leaves out too
        print(row(found[case.name]), flush=True)
    return [found[case.name] for case in todo if case.name in found]


def row(result: Result) -> str:
    """One line of the table."""
    return f"{result.outcome:6} {result.name:28} {result.seconds:6.1f} s  {result.said}"


def main(arguments: Sequence[str]) -> int:
    """The command line; 0 if every case has a good result, 2 if some have none yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu check", description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="?", help="a finished wheel; without one, what needs it is left out")
    parser.add_argument("--minutes", type=float, default=8.0, help="of this call; the next one goes on")
    parser.add_argument("--state", type=Path, default=ROOT / "build/gpu-check", help="results and logs")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--commit", help="of a copy without git")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=min(len(os.sched_getaffinity(0)), 12), help="processes at a time")
    options = parser.parse_args(arguments)
    here = machine(options.commit)
    if not here.gpu:
        print("torch sees no NVIDIA GPU; needed one", file=sys.stderr)
        return 3
    options.state.mkdir(parents=True, exist_ok=True)
    wheel = None if options.wheel is None else options.wheel.resolve()
    todo = [case for case in cases(wheel, options.jobs) if options.only in case.name]
    print(f"{here.gpus} x {here.gpu}, torch {here.torch}, commit {here.commit}: {len(todo)} cases", flush=True)
    results = check(todo, here, options.state, 60 * options.minutes)
    if options.json is not None:
        keep(options.json, here, results)
    bad = [one for one in results if one.outcome != "ok"]
    unrun = [case.name for case in todo if case.gpus <= here.gpus and case.name not in {one.name for one in results}]
    apart = [case.name for case in todo if case.gpus > here.gpus]
    print(f"\n{len(results) - len(bad)} ok, {len(bad)} not, {len(unrun)} to go, {len(apart)} need another GPU")
    for one in bad:
        print(f"  {row(one)}")
    if unrun:
        print(f"  to go on, call this again: {', '.join(unrun)}")
    return 1 if bad else 2 if unrun else 0
