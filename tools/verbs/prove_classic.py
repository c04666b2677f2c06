"""Prove the one host library in a torch: the adapter's symbols, the CPU kernels, the threads.

For each interpreter, which has the torch: the library and, below torch 2.10, the adapter are built as for a wheel,
every symbol that the adapter asks of torch is looked for in torch's own libraries, and ``classic_check`` runs the
kernels. What held is kept in docs/evidence, and the symbols in tools/torch_symbols.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from precast._abi.settings import Settings
from precast._builder import catalogue, descriptions, provenance
from precast._builder.binaries import Made, check_ceilings, joined, make_host, manifest
from precast._builder.cache import Cache, default_root
from precast.core.manifest import BuildMode
from precast.core.torch_abi import ANY_TORCH, STABLE_FLOOR, AnyTorch, Exact, parse_torch_abi
from precast.core.version import Label, TorchVersion
from precast.errors import KernelError
from tools.shared import torch_symbols

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
CHECK = ROOT / "tools" / "classic_check.py"
NEEDED_RATIO = 1.5  # time of one thread / time of two threads
_ASK = (
    "import torch, json; print(json.dumps([torch.__version__, torch.compiled_with_cxx11_abi(), torch.__file__,"
    " torch.version.cuda]))"
)


def prove(python: str, settings: Settings, *, record: bool) -> str:
    """Prove everything for the torch of one interpreter; return one line with the results."""
    said, cxx11, place, cuda = json.loads(_run([python, "-c", _ASK], Path.cwd()))
    torch = TorchVersion.parse(said)
    if torch.is_prerelease:
        raise KernelError(f"{python} has torch {torch}; needed a release")
    cache = Cache(default_root(settings))
    abi = ANY_TORCH if torch.release >= STABLE_FLOOR else Exact(torch.release, cxx11)
    made = joined(make_host(one, settings, cache) for one in dict.fromkeys((ANY_TORCH, abi)))
    for file, _ in made.host:
        check_ceilings(file)
    _, last = made.host[-1]
    offered = torch_symbols.of_torch(Path(place).parent / "lib")
    asked = torch_symbols.check(last, offered, f"torch {torch}") if isinstance(abi, Exact) else frozenset()
    with tempfile.TemporaryDirectory(prefix="precast-prove-") as folder:
        site = _site(made, Path(folder))
        facts = json.loads(_run([python, str(CHECK), str(NEEDED_RATIO)], site).splitlines()[-1])
    if facts["ratio"] <= NEEDED_RATIO or len(facts["openmp"]) != 1:
        raise KernelError(
            f"the threads of torch {torch} do not serve {abi} as they should",
            found=f"{facts['ratio']} times as fast on two threads, OpenMP runtimes {facts['openmp']}",
            needed=f"more than {NEEDED_RATIO} times, and one runtime",
        )
    if record:
        if isinstance(abi, Exact):
            torch_symbols.record(abi, str(torch), asked)
        _write(torch, abi, cuda, facts, len(asked), made)
    said = f"{facts['ratio']} times on two threads, {facts['level']}, {facts['openmp'][0]}"
    return f"torch {torch}, {abi}, library {made.host[0][0].sha256[:16]}: {len(asked)} symbols, {said}"


def hold_against(abi: Exact, folder: Path, torch: str, settings: Settings) -> str:
    """Check only the symbols, for a torch that does not run here; ``folder`` has its libraries."""
    (_, library), *_ = make_host(abi, settings, Cache(default_root(settings))).host
    asked = torch_symbols.check(library, torch_symbols.of_torch(folder), f"torch {torch}")
    torch_symbols.record(abi, torch, asked)
    return f"torch {torch}, {abi}: {len(asked)} symbols, not executed"


def _site(made: Made, folder: Path) -> Path:
    """A package folder as a wheel would install it, with only these files."""
    package = folder / "precast"
    shutil.copytree(ROOT / "pkg" / "precast", package, ignore=shutil.ignore_patterns("__pycache__", "build_info.json"))
    (package / "_builder" / catalogue.GATHERED.name).write_text(descriptions.gathered(ROOT / "csrc"), encoding="utf-8")
    (package / "_C" / "host").mkdir()
    for file, library in made.host:
        shutil.copyfile(library, package / "_C" / file.path)
    info = manifest(made, BuildMode.RELEASE, Label("cpu"), ROOT)
    (package / "_C" / "build_info.json").write_text(info.to_json(), encoding="utf-8")
    return folder


def _write(
    torch: TorchVersion, abi: AnyTorch | Exact, cuda: str | None, facts: dict[str, Any], symbols: int, made: Made
) -> None:
    """Write the record of one torch in the format of docs/evidence/README.md."""
    release = f"{torch.release}.{torch.patch}"
    run = {
        "torch": release,
        "build": "cpu" if cuda is None else f"cu{cuda.replace('.', '')}",
        "python": facts["python"],
        "machine": platform.machine(),
        "host": str(abi),
        "wheel": None,
        "device": "cpu",
        "hardware": f"{_processor()}, {os.cpu_count()} threads",
        "checks": [
            *facts["checks"],
            *(
                [f"all {symbols} symbols that the adapter asks of torch are in torch's own libraries"]
                if symbols
                else []
            ),
            f"CPU level {facts['level']}",
            f"scaled_softmax {facts['ratio']} times as fast on two threads as on one",
            f"one OpenMP runtime mapped: {re.sub(r'-[0-9a-f]{8}', '', facts['openmp'][0])}",
            *(f"{file.path} sha256 {file.sha256}" for file, _ in made.host),
        ],
    }
    document = {
        "schema": 1,
        "title": f"The one host library in torch {torch.release}, from the prebuilt file alone",
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        "commit": provenance.of(ROOT).commit,
        "command": f"TORCH={release} PYTHON=python{facts['python']} make prove-classic",
        "runs": [run],
    }
    path = EVIDENCE / f"{platform.machine()}-{abi}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*:\s*(\S+ \S+)", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _run(command: list[str], site: Path) -> str:
    """Run with precast from ``site`` and without its settings; an error shows the whole output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTHON"))}
    done = subprocess.run(
        command, env={**env, "PYTHONPATH": str(site)}, cwd=site, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KernelError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Prove each interpreter's torch; all are tried, and any failure makes the status 1."""
    parser = argparse.ArgumentParser(prog="python -m tools prove-classic", description=__doc__)
    parser.add_argument("python", nargs="*", default=[sys.executable], help="interpreters with a torch")
    parser.add_argument(
        "--symbols",
        nargs=3,
        metavar=("ABI", "DIR", "TORCH"),
        help="only hold an adapter against the libraries of a torch",
    )
    parser.add_argument("--dry-run", action="store_true", help="write neither evidence nor symbols")
    options = parser.parse_args(arguments)
    settings = Settings.from_env(os.environ)
    if options.symbols is not None:
        abi, folder, torch = options.symbols
        exact = parse_torch_abi(abi)
        if not isinstance(exact, Exact):
            raise KernelError(f"{abi} is not the torch of an adapter; needed one such as torch-2.4-cxx0")
        print(hold_against(exact, Path(folder), torch, settings))
        return 0
    return max([_tried(python, settings, record=not options.dry_run) for python in options.python])


def _tried(python: str, settings: Settings, *, record: bool) -> int:
    try:
        print(prove(python, settings, record=record), flush=True)
    except KernelError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0
