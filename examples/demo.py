"""The whole promise on one screen: kernels that come prebuilt, and the same kernels built where nothing is prebuilt.

It builds a wheel for this machine into a temporary folder, runs ``demo_steps.py`` with it, hides the prebuilt files and
runs that again, twice, with a cache of its own. Nothing outside the temporary folder is changed. The exit status is 0
only if every check held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
HIDDEN = ("host", "device", "build_info.json")


@dataclass(frozen=True)
class Run:
    """One process of ``demo_steps.py``: the title of its column, and what it reported."""

    title: str
    expected: tuple[str, ...]
    report: dict[str, Any]
    wall_s: float


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Take this environment without the settings that would change what the demo shows."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTHON", "CUDA_EXT"))
    }
    return {**kept, "PRECAST_CACHE_DIR": str(cache), **more}


def install(target: Path, cache: Path) -> float:
    """Build a wheel for this machine and unpack it into ``target``; return the seconds it took."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    start = time.perf_counter()
    subprocess.run([*command, "--target", str(target), str(CHECKOUT)], env=environment(cache, CUDA_EXT="1"), check=True)
    return time.perf_counter() - start


def run_steps(title: str, expected: tuple[str, ...], target: Path, cache: Path) -> Run:
    """Run the steps in a fresh process that finds precast in ``target`` and starts away from the checkout."""
    command = [sys.executable, str(CHECKOUT / "examples" / "demo_steps.py")]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment(cache, PYTHONPATH=str(target)),
        cwd=target,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"demo: the steps failed ({title}); their own message is above")
    report = json.loads(done.stdout.splitlines()[-1])
    return Run(title, expected, report, time.perf_counter() - start)


def hide(target: Path) -> None:
    """Move what is prebuilt out of the installation."""
    (target / "hidden").mkdir()
    for name in HIDDEN:
        path = target / "precast" / "_C" / name
        if path.exists():
            path.rename(target / "hidden" / name)


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print one table; every column but the first two is as wide as its longest cell."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    print(f"\n{title}")
    for row in [head, ["-" * width for width in widths], *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def shown(path: str, roots: dict[str, Path]) -> str:
    """Shorten a path by the name of the folder it lies in."""
    for name, root in roots.items():
        if Path(path).is_relative_to(root):
            return f"{name}/{Path(path).relative_to(root)}"
    return path


def print_times(runs: list[Run], built_s: float) -> None:
    """Print the time of each step, a column for each run."""
    steps = list(runs[0].report["seconds"])
    rows = [[step, *(f"{run.report['seconds'][step] * 1e3:,.1f} ms" for run in runs)] for step in steps]
    rows.append(["whole process", *(f"{run.wall_s * 1e3:,.0f} ms" for run in runs)])
    table("Times", ["step", *(run.title for run in runs)], rows)
    print(f"  Building and installing the wheel took {built_s:.1f} s, once, before any of this.")


def print_checks(runs: list[Run], extra: list[tuple[str, bool, str]]) -> bool:
    """Print every check of every run; return whether all held."""
    results = [
        (f"{run.title}: {name}", held, fact) for run in runs for name, (held, fact) in run.report["checks"].items()
    ]
    for run in runs:
        kinds = sorted({kind for *_, kind, _ in run.report["kernels"]})
        results.append(
            (
                f"{run.title}: every kernel is {' or '.join(run.expected)}",
                set(kinds) <= set(run.expected),
                " ".join(kinds),
            )
        )
    results += extra
    table("Checks", ["", "check", "found"], [["ok" if held else "FAILED", name, fact] for name, held, fact in results])
    return all(held for _, held, _ in results)


def main() -> int:
    """Build, run three times, print; return 0 if every check held."""
    with tempfile.TemporaryDirectory(prefix="precast-demo-") as folder:
        target, cache, unused = (Path(folder) / name for name in ("site", "cache", "unused"))
        print("Building a wheel for this machine ...", flush=True)
        built_s = install(target, Path(folder) / "build-cache")
        runs = [run_steps("prebuilt", ("prebuilt",), target, unused)]
        extra = [
            (
                "prebuilt: nothing was built at run time",
                not unused.exists(),
                "no cache was made" if not unused.exists() else "a cache was made",
            ),
            (
                "prebuilt: the steps used the wheel",
                runs[0].report["facts"]["precast"].startswith(folder),
                "precast is in the temporary folder",
            ),
        ]
        hide(target)
        print("Hiding the prebuilt files, building at run time into an empty cache ...", flush=True)
        runs.append(run_steps("hidden: JIT", ("jit",), target, cache))
        runs.append(run_steps("hidden: again", ("cache",), target, cache))
        rows = [
            [run.title, family, part, kind, shown(path, {"wheel": target, "cache": cache})]
            for run in runs
            for family, _, part, kind, path in run.report["kernels"]
        ]
        print(f"\ntorch {runs[0].report['facts']['torch']}, Python {sys.version.split()[0]}")
        table("Where each kernel came from", ["run", "kernels", "part", "source", "file"], rows)
        print_times(runs, built_s)
        held = print_checks(runs, extra)
    print("\nEvery check held." if held else "\nNot every check held: see FAILED above.")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
