"""Installs finished wheels into clean folders and shows by independent witnesses what a GPU executed.

Usage: python tests/gpu/run.py WHEEL... [--two-gpus] [--json FILE]. README.md beside this file says what is witnessed.
Exit status 0 only if every scenario of every wheel held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TWO_GPUS = {
    "second_device": "cuda:1 while cuda:0 is current",
    "two_graphs": "graphs on both",
    "one_refused": "one of two refused",
}
BEHAVIOUR = ("cold_capture", "fresh_thread", "autograd_thread", "side_stream", "huge")


@dataclass(frozen=True)
class Case:
    """A wheel prepared in a certain way, a scenario, and what its witnesses must say."""

    name: str
    scenario: str
    prepare: Callable[[Path], None] = lambda _: None
    env: dict[str, str] = field(default_factory=dict)
    expect: Callable[[dict[str, object], Path], str | None] = lambda _, __: None
    fails: bool = False


def remove(*patterns: str) -> Callable[[Path], None]:
    """Deletes shipped files; a pattern that matches nothing is an error of this runner."""

    def prepare(target: Path) -> None:
        for pattern in patterns:
            found = list((target / "precast/_C").glob(pattern))
            assert found, f"{pattern} matches nothing in {target}"
            for path in found:
                path.unlink()

    return prepare


def library_from(where: str) -> Callable[[dict[str, object], Path], str | None]:
    """The one mapped host library is the wheel's own, or one in the cache of this run."""

    def expect(seen: dict[str, object], target: Path) -> str | None:
        libraries = seen["libraries"]
        root = str(target if where == "wheel" else target.with_suffix(".cache"))
        good = isinstance(libraries, list) and len(libraries) == 1 and libraries[0].startswith(root)
        return None if good else f"mapped {libraries}, expected one under {root}"

    return expect


def all_of(*checks: Callable[[dict[str, object], Path], str | None]) -> Callable[[dict[str, object], Path], str | None]:
    def expect(seen: dict[str, object], target: Path) -> str | None:
        return next((said for check in checks if (said := check(seen, target))), None)

    return expect


def built(*suffixes: str) -> Callable[[dict[str, object], Path], str | None]:
    """What the run left in its cache, which was empty: exactly one payload of each suffix, or nothing at all."""

    def expect(_: dict[str, object], target: Path) -> str | None:
        found = sorted(path.suffix for path in target.with_suffix(".cache").glob("v1/*/*/*.*"))
        payloads = [suffix for suffix in found if suffix in (".cubin", ".ptx", ".so")]
        return None if payloads == sorted(suffixes) else f"built {payloads}, expected {sorted(suffixes)}"

    return expect


def code(binary: int) -> Callable[[dict[str, object], Path], str | None]:
    def expect(seen: dict[str, object], _: Path) -> str | None:
        if seen["binary"] != [binary]:
            return f"BINARY_VERSION {seen['binary']}, expected {binary}"
        if seen["local_bytes"]:
            return f"{seen['local_bytes']} bytes of local memory: a kernel spills"
        return None

    return expect


def cases(binary: int) -> Iterable[Case]:
    """All preparations for a GPU whose exact SASS target has this number."""
    no_compiler = {"PATH": "/nonexistent"}
    cubins, ptx = "device/*.cubin.xz", "device/*.ptx.xz"
    prebuilt = all_of(library_from("wheel"), built(), code(binary))
    yield Case("prebuilt SASS", "first_call", env=no_compiler | {"CUDA_DISABLE_PTX_JIT": "1"}, expect=prebuilt)
    yield Case("cubins removed: PTX", "first_call", remove(cubins), no_compiler, prebuilt)
    yield Case(
        "  and PTX is really what ran",
        "first_call",
        remove(cubins),
        no_compiler | {"CUDA_DISABLE_PTX_JIT": "1", "PRECAST_JIT": "aot"},
        fails=True,
    )
    yield Case(
        "cubins and PTX removed: NVRTC",
        "first_call",
        remove(cubins, ptx),
        no_compiler | {"CUDA_DISABLE_PTX_JIT": "1"},
        all_of(library_from("wheel"), built(".cubin"), code(binary)),
    )
    yield Case(
        "host library removed: g++",
        "first_call",
        remove("host/*.so"),
        expect=all_of(library_from("cache"), built(".so"), code(binary)),
    )
    for scenario in BEHAVIOUR:
        yield Case(scenario.replace("_", " "), scenario)
    yield Case("cold capture, eager loading", "cold_capture", env={"CUDA_MODULE_LOADING": "EAGER"})


def install(wheel: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)


def run_case(case: Case, installed: Path, work: Path) -> tuple[str | None, dict[str, object]]:
    """Copies the installation, prepares it, runs the child; returns what is wrong (or None) and what was seen."""
    target = work / "site"
    for old in (target, target.with_suffix(".cache")):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(installed, target)
    case.prepare(target)
    env = os.environ | {
        "PYTHONPATH": str(target),
        "PRECAST_CACHE_DIR": str(target.with_suffix(".cache")),
        "CUDA_CACHE_DISABLE": "1",
        **case.env,
    }
    command = [sys.executable, str(HERE / "scenario.py"), case.scenario]
    child = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True, timeout=300, check=False)
    if case.fails:
        return (None, {"refused": last_line(child.stderr)}) if child.returncode else ("it ran", {})
    if child.returncode:
        return child.stderr[-3000:], {}
    seen = json.loads(child.stdout.splitlines()[-1])
    return case.expect(seen, target), seen


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:160]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--two-gpus", action="store_true", help="run the scenarios that need two GPUs, and only them")
    parser.add_argument("--json", type=Path, help="write everything that was witnessed to this file")
    options = parser.parse_args(argv)
    import torch

    major, minor = torch.cuda.get_device_capability()
    print(f"{torch.cuda.get_device_name()} sm_{major}{minor}, torch {torch.__version__}")
    failed, record = 0, []
    for wheel in options.wheels:
        with tempfile.TemporaryDirectory(prefix="precast-gpu-") as folder:
            installed = Path(folder) / "installed"
            install(wheel.resolve(), installed)
            listed = (
                [Case(name, scenario) for scenario, name in TWO_GPUS.items()]
                if options.two_gpus
                else list(cases(major * 10 + minor))
            )
            for case in listed:
                wrong, seen = run_case(case, installed, Path(folder))
                failed += wrong is not None
                record.append({"wheel": wheel.name, "case": case.name, "wrong": wrong, "seen": seen})
                brief = {key: value for key, value in seen.items() if key != "libraries"}
                label = wheel.name.split("-")[1]
                print(f"{'FAIL' if wrong else 'ok  '} {label:14} {case.name:32} {json.dumps(brief)}", flush=True)
                if wrong:
                    print("     " + wrong.replace("\n", "\n     "), flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    print(f"{len(record) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
