"""Make a whole release on one machine, by the verbs that the workflows call: ``make release-local``.

Plan, then device code and host libraries, then the sdist, wheels, and the index. What is there already is reused; after
an interruption the same command goes on where it stopped. OUT holds parts, wheelhouse, site and logs, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import lock, matrix, parts, toolchain
from precast._builder.cache import open_cache
from precast.errors import KernelError
from tools import __main__ as verbs
from tools.shared import preflight, wheelhouse
from tools.shared.cells import Plan, expand
from tools.shared.schedule import Runner, Step, run_all
from tools.verbs import sdist
from tools.verbs.check_set import expected
from tools.verbs.plan import as_json

ROOT = Path(__file__).resolve().parents[2]
LOCK = "lock"
FOLDERS = ("parts", "wheelhouse", "site", "logs")


def steps_of(plan: Plan, out: Path, driver: str) -> Iterator[Step]:
    """All steps, the longest first, so that no processor waits at the end for a long one that started last."""
    made, finished = out / "parts", out / "wheelhouse"

    def step(name: str, kind: str, product: Path, *words: str, needs: tuple[str, ...] = ()) -> Step:
        return Step(name, kind, words, product, needs)

    for device in sorted(plan.device, key=lambda cell: -len(cell.targets)):
        if not device.not_built:
            product = made / device.name / parts.MANIFEST
            yield step(device.name, "device code", product, "device", "--label", device.label, "--out", str(made))
    for host in sorted(plan.host, key=lambda cell: cell.headers is not None):  # the libraries, then the adapters
        if not host.not_built:
            product = made / host.name / parts.MANIFEST
            words = ("host", "--abi", host.abi, "--arch", host.machine, "--out", str(made))
            yield step(host.name, "host libraries", product, *words)
    source = wheelhouse.SDIST_CELL
    yield step(source, "sdist", finished / f"{source}.json", "sdist", "--out", str(finished))
    wheels = [wheel for wheel in plan.wheel if not wheel.not_built]
    for wheel in wheels:
        cell = ("--label", wheel.label, "--arch", wheel.machine, "--driver", driver_of(wheel.machine, driver))
        inputs = ("--parts", str(made), "--sdist", str(finished / sdist.NAME))
        needs = (*wheel.device, *wheel.host, source)
        product = finished / f"{wheel.name}.json"
        yield step(wheel.name, "wheels", product, "build", *cell, *inputs, "--out", str(finished), needs=needs)
    every = (source, *(wheel.name for wheel in wheels))
    yield step("check-set", "checks", out / "none", "check-set", str(finished), "--event", plan.event, needs=every)
    if "index" in verbs.VERBS:
        site = str(out / "site")
        yield step(
            "index", "index", out / "none", "index", str(finished), "--out", site, "--fresh", needs=("check-set",)
        )


def driver_of(machine: str, driver: str) -> str:
    """The driver for an architecture: a container only builds for its own; others are cross-compiled by the hooks."""
    return driver if machine == os.uname().machine else "hooks"


def choose_driver(asked: str) -> tuple[str, str]:
    """The driver that runs the hooks, and the reason."""
    if asked != "auto":
        return asked, "as asked"
    engine = os.environ.get("CIBW_CONTAINER_ENGINE", "docker").partition(";")[0].strip()
    if shutil.which(engine) is None:
        return "hooks", f"no {engine} on PATH"
    if subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        return "hooks", f"{engine} does not answer"
    return "cibuildwheel", f"{engine} answers"


def refuse_strangers(out: Path, plan: Plan, known: matrix.Matrix) -> None:
    """Before anything is written, refuse files that no step made, and files that were changed."""
    found = [f"{path.name}: not part of a release" for path in out.iterdir() if path.name not in (*FOLDERS, LOCK)]
    cells = {*(cell.name for cell in plan.device), *(cell.name for cell in plan.host)}
    if (out / "parts").is_dir():
        there = [path.name for path in (out / "parts").iterdir() if not path.name.startswith(".")]
        found += [f"parts/{name}: no cell of the plan makes that" for name in sorted(there) if name not in cells]
    if (out / "wheelhouse").is_dir():
        problems = wheelhouse.problems(out / "wheelhouse", expected(plan, known), complete=False)
        found += [f"wheelhouse/{line}" for line in problems]
    if found:
        raise KernelError(
            f"{out} is not a release, or not one that this program left there",
            found=found,
            needed="only what this program wrote, as it wrote it",
            fix=["remove what is named", "--out another folder"],
        )


def make(out: Path, event: str, asked: str, jobs: int) -> None:
    """Make the release, or its missing files."""
    from tools.shared.display import console, display, summary

    started = time.perf_counter()
    screen = console()
    known = matrix.load(ROOT / "matrix.toml")
    plan = expand(known, known.event(event))
    out.mkdir(parents=True, exist_ok=True)
    with lock.exclusive(out / LOCK, f"the release in {out}", wait_s=2.0) as turn:
        if not turn.alone:  # two processes must not fill the same folder
            raise KernelError(
                f"the release in {out} cannot be made",
                found="another release being made in this folder",
                needed="the folder for this one alone",
                fix=["wait for the other one", "python -m tools release --out ANOTHER"],
            )
        turn.tell(out / "logs")
        refuse_strangers(out, plan, known)
        settings = Settings.from_env(os.environ)
        preflight.check(plan, out, settings, open_cache(settings), ROOT)
        for folder in ("parts", "wheelhouse", "logs"):  # the index creates its own folder
            (out / folder).mkdir(exist_ok=True)
        wheelhouse.clear_staging(out / "wheelhouse")
        for left in (out / "parts").glob(".*"):
            shutil.rmtree(left)
        (out / "logs" / "plan.json").write_text(as_json(plan), encoding="utf-8")
        driver, why = choose_driver(asked)
        print(f"wheels by {driver}: {why}", flush=True)
        if "index" not in verbs.VERBS:
            print("no index: this checkout has no such verb", flush=True)
        steps = list(steps_of(plan, out, driver))
        env = {**os.environ, "MAX_JOBS": str(max(1, len(os.sched_getaffinity(0)) // jobs))}
        with display(steps, screen) as shown:
            outcomes = run_all(steps, Runner(ROOT, out / "logs", env), jobs, shown.start, shown.end)
        summary(outcomes, wheelhouse.read(out / "wheelhouse"), time.perf_counter() - started, screen)


def main(arguments: list[str]) -> int:
    """Make a release."""
    parser = argparse.ArgumentParser(prog="python -m tools release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release", help="its folder (dist/release)")
    parser.add_argument("--event", default="release", help="what to cover; release, the default, is everything")
    parser.add_argument("--driver", choices=("auto", "hooks", "cibuildwheel"), default="auto", help="who makes wheels")
    options = parser.parse_args(arguments)
    jobs = toolchain.default_jobs(Settings.from_env(os.environ))
    try:
        make(options.out.absolute(), options.event, options.driver, jobs)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return 130
    return 0
