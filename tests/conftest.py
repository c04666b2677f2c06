"""The policy of this suite: a test says what it needs; a skip that this machine gives no reason for fails the run.

A marker names a need (``torch``, ``fsdp2``, ``gpu``, ``compiler``, ``triton``, ``nvcc``, ``wheel``, ``headers``,
``act``, ``chromium``, ``site``, ``node``, ``strace``, ``mounts``, ``container``, ``qemu``, ``freethreaded``,
``mutants``, ``models``, ``timm``). The needs of the collected tests are probed once; what was found is printed below
the results, and a test whose need is not met is skipped here, with the reason. Any other skip is reported as a failure,
because it would hide that something untested could have been tested. Every skip is listed again at the end. A module
that cannot be imported without torch says ``pytest.importorskip("torch")`` first.

A test marked ``long`` is left out of a run that names nothing: neither a path nor ``-k`` nor ``-m``. ``parallel.py``
spreads the tests over processes; the process that hands them out prints what those that run them found.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests import parallel, progress
from tests.parallel import is_worker


@pytest.fixture(scope="session", autouse=True)
def _every_cpu_level() -> Generator[None]:
    """A build at run time makes the one CPU level this machine would choose; the tests want to choose among all."""
    from precast._builder import flags
    from precast._load import jit

    if jit.levels_to_build.__module__ == jit.__name__:  # not a run of pytest inside of one of our tests
        loader = sys.modules.get("precast._load.loader")
        # A module of tests that calls an op as it is imported would build one level for all tests of this process.
        assert loader is None or not loader._state.loaded, (
            f"kernels were loaded before any test: {loader._state.loaded}"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "levels_to_build", lambda settings: flags.cpu_levels(platform.machine()))
        yield


@dataclass(frozen=True)
class Found:
    """What a probe found: whether the need is met, and the fact that says so."""

    met: bool
    detail: str


@dataclass(frozen=True)
class Need:
    """A marker's name, what it means, and how this machine is asked about it."""

    name: str
    meaning: str
    probe: Callable[[], Found]


@functools.cache
def torch_facts() -> dict[str, str]:
    """Ask torch in a child process, so that a broken torch cannot end this one; keys: version, gpu, error."""
    code = (
        "import json, torch\n"
        "gpu = torch.version.hip is None and torch.cuda.is_available()\n"
        "names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpu else []\n"
        "print(json.dumps({'version': torch.__version__, 'gpu': ', '.join(names)}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        return {"error": (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]}
    facts: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return facts


def probe_torch() -> Found:
    facts = torch_facts()
    return Found("version" in facts, facts.get("version", facts.get("error", "")))


def probe_fsdp2() -> Found:
    facts = torch_facts()
    known = tuple(int(part) for part in facts.get("version", "0.0").split(".")[:2])
    return Found(known >= (2, 7), facts.get("version", facts.get("error", "")))


def probe_gpu() -> Found:
    facts = torch_facts()
    return Found(bool(facts.get("gpu")), facts.get("gpu") or "torch sees no NVIDIA GPU")


def probe_compiler() -> Found:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++"))), None)
    if compiler is None:
        return Found(False, "none of $CXX, g++, clang++ is on PATH")
    if importlib.util.find_spec("ninja") is None and shutil.which("ninja") is None:
        return Found(False, f"{compiler} is there, ninja is not")
    return Found(True, compiler)


def probe_wheel() -> Found:
    """Whether pip finds the build backend: that is the first thing an isolated build asks an index for."""
    wanted = f"setuptools=={version('setuptools')}"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "-q", wanted]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        return Found(False, f"pip does not find {wanted}: {(run.stderr.strip().splitlines() or ['no output'])[-1]}")
    return Found(True, f"pip finds {wanted}")


def probe_headers() -> Found:
    """Whether a wheel of torch can be read piece by piece, as a release does it."""
    from precast._builder import headers, torch_wheel

    torch = headers.load_pins().torch
    try:
        with torch_wheel.opened(torch_wheel.find_wheel(torch)):
            return Found(True, f"the wheel of torch {torch} can be read by range")
    except OSError as error:
        return Found(False, str(error).splitlines()[0])


def probe_triton() -> Found:
    """Its interpreter needs no GPU."""
    there = importlib.util.find_spec("triton") is not None
    return Found(there, f"triton {version('triton')}" if there else "no package triton")


def probe_nvcc() -> Found:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    return Found(nvcc is not None, nvcc or "no nvcc on PATH or in /usr/local/cuda/bin")


def probe_container() -> Found:
    for engine in filter(None, map(shutil.which, ("docker", "podman"))):
        if subprocess.run([engine, "info"], capture_output=True, timeout=60, check=False).returncode == 0:
            return Found(True, engine)
    return Found(False, "neither docker nor podman answers")


def probe_act() -> Found:
    beside = shutil.which("act", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return Found(beside is not None, beside or "no act beside this Python or on PATH")


def probe_freethreaded() -> Found:
    python = os.environ.get("FREE_THREADED_PYTHON")
    if not python:
        return Found(False, "FREE_THREADED_PYTHON names no interpreter (make free-threaded)")
    code = "import sys, ninja, torch; print(sys.version.split()[0], 'torch', torch.__version__, sys._is_gil_enabled())"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    if run.returncode or not run.stdout.rstrip().endswith("False"):
        said = (run.stdout + run.stderr).strip().splitlines() or ["no output"]
        return Found(False, f"{python} is no free-threaded Python with torch and ninja: {said[-1]}")
    return Found(True, run.stdout.rpartition(" ")[0])


def probe_qemu() -> Found:
    if platform.machine() != "x86_64":
        return Found(False, f"this machine is {platform.machine()}: it runs its own levels, in the other tests")
    programs = {name: shutil.which(name) for name in ("aarch64-linux-gnu-g++", "qemu-aarch64", "qemu-x86_64")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        return Found(False, f"not on PATH: {', '.join(missing)} (apt-get install g++-aarch64-linux-gnu qemu-user)")
    return Found(True, ", ".join(filter(None, programs.values())))


def probe_models() -> Found:
    packages = ("transformers", "diffusers", "peft", "kernels")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        return Found(False, f"no package {', '.join(missing)} (make env installs them where this torch has them)")
    return Found(True, ", ".join(f"{name} {version(name)}" for name in packages))


def probe_timm() -> Found:
    """Whether timm can be imported: it needs a torchvision that was built for this torch."""
    command = [sys.executable, "-W", "ignore", "-c", "import timm; print(timm.__version__)"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = (run.stdout if run.returncode == 0 else run.stderr).strip().splitlines() or [f"status {run.returncode}"]
    return Found(run.returncode == 0, said[-1])  # of a traceback, the error


def probe_mutants() -> Found:
    missing = [name for name in ("cosmic_ray", "coverage") if importlib.util.find_spec(name) is None]
    if missing:
        return Found(False, f"no package {', '.join(missing)} (make mutate installs them)")
    return Found(True, f"cosmic-ray {version('cosmic-ray')}, coverage {version('coverage')}")


def probe_chromium() -> Found:
    from tests.kit import browser

    program = browser.program()
    if program is None:
        return Found(False, f"none of {', '.join(browser.PROGRAMS)} is on PATH")
    run = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return Found(run.returncode == 0, (run.stdout or run.stderr).strip()[-200:])


def probe_site() -> Found:
    """The built site; it may be older than the sources, which is for whoever runs the tests to know."""
    root = Path(__file__).resolve().parents[1]
    wanted = (root / "build" / "docs" / "index.html", root / ".venv-docs" / "bin" / "python")
    missing = [path.relative_to(root).as_posix() for path in wanted if not path.exists()]
    return Found(not missing, f"no {', '.join(missing)}: make docs" if missing else "build/docs")


def probe_node() -> Found:
    node = shutil.which("node")
    return Found(node is not None, node or "no node on PATH")


def probe_strace() -> Found:
    """Whether it is there and may watch a process: a container can forbid it."""
    strace = shutil.which("strace")
    if strace is None:
        return Found(False, "no strace on PATH")
    run = subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True, text=True, timeout=60, check=False)
    return Found(run.returncode == 0, strace if run.returncode == 0 else run.stderr.strip()[-200:])


def probe_mounts() -> Found:
    """Whether a tmpfs without execution can be mounted: a container without CAP_SYS_ADMIN forbids it."""
    if shutil.which("mount") is None:
        return Found(False, "no mount on PATH")
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=64k", "none", folder]
        done = subprocess.run(mount, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            return Found(False, done.stderr.strip()[-200:])
        subprocess.run(["umount", folder], check=True)
    return Found(True, "a tmpfs can be mounted")


NEEDS = {
    need.name: need
    for need in (
        Need("torch", "imports torch", probe_torch),
        Need("fsdp2", "shards models over ranks on the CPU: torch 2.7 or newer", probe_fsdp2),
        Need("gpu", "needs an NVIDIA GPU that torch can use; gpu(2): as many of them", probe_gpu),
        Need("compiler", "needs a C++ compiler and ninja", probe_compiler),
        Need("triton", "needs Triton; a test that launches on a GPU says gpu as well", probe_triton),
        Need("nvcc", "needs the compiler of a CUDA toolkit", probe_nvcc),
        Need("wheel", "builds or installs a wheel: pip must reach a package index", probe_wheel),
        Need("headers", "reads the headers of a released torch from the package index", probe_headers),
        Need("act", "runs workflows on this machine by act", probe_act),
        Need("freethreaded", "runs on the free-threaded Python of FREE_THREADED_PYTHON", probe_freethreaded),
        Need("qemu", "needs the cross compiler for aarch64 and qemu-user", probe_qemu),
        Need("models", "runs models of transformers and diffusers", probe_models),
        Need("timm", "runs models of timm", probe_timm),
        Need("mutants", "makes mutants of Python, with what make mutate installs", probe_mutants),
        Need("chromium", "drives pages in Chromium", probe_chromium),
        Need("site", "reads the documentation site that make docs built", probe_site),
        Need("node", "runs scripts of the site by Node.js", probe_node),
        Need("strace", "watches the system calls of a process", probe_strace),
        Need("mounts", "mounts a tmpfs, as root may", probe_mounts),
        Need("container", "needs a container engine that answers", probe_container),
    )
}


# What the modules of tools/ import of other packages.
TOOLS = {"cyclonedx", "elftools", "jinja2", "packageurl", "packaging", "rich", "tomli", "twine", "yaml"}


# What is printed above the skips, each line once however many processes say it.
FACTS = pytest.StashKey[dict[str, None]]()


@functools.cache
def found(name: str) -> Found:
    """The answer of one need's probe, asked at most once in a run."""
    return NEEDS[name].probe()


def unmet(item: pytest.Item) -> str | None:
    """Say why this machine cannot run a test, or None."""
    for marker in item.iter_markers():
        if marker.name not in NEEDS:
            continue
        answer = found(marker.name)
        if not answer.met:
            return f"needs {marker.name}: {answer.detail}"
        if marker.name == "gpu" and marker.args and len(answer.detail.split(", ")) < marker.args[0]:
            return f"needs {marker.args[0]} GPUs: {answer.detail}"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write what tests/snapshots is compared with")


def pytest_configure(config: pytest.Config) -> None:
    for need in NEEDS.values():
        config.addinivalue_line("markers", f"{need.name}: {need.meaning}")
    config.addinivalue_line("markers", "long: repeats the claim of a test without this marker, for more cases")
    config.addinivalue_line(
        "markers", "targets: one more GPU target, or the same one by nvcc, of a long test; .ci/run leaves it out"
    )
    config.addinivalue_line("markers", "large: wants more than 10 GB of a GPU; those that do take turns")
    config.stash[FACTS] = {}
    # A worker has the arguments of the process that hands out the tests, so both decide alike.
    chosen = config.option.markexpr or config.option.keyword or config.args_source is config.ArgsSource.ARGS
    if not chosen:
        config.option.markexpr = "not long"
    if is_worker(config):
        parallel.one_thread_each()
    elif config.option.verbose == 0 and getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(progress.Minutes(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return parallel.workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return parallel.scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    return parallel.sendable((yield))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: next to nothing of what is made is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_worker(config):
        items.sort(key=lambda item: parallel.rank(item.nodeid))


def pytest_deselected(items: list[pytest.Item]) -> None:
    long = [item for item in items if item.get_closest_marker("long")]
    if long and long[0].config.option.markexpr == "not long":
        long[0].config.stash[FACTS][f"left out: {len(long)} tests marked long; make test-all runs them too"] = None


def pytest_collection_finish(session: pytest.Session) -> None:
    used = {marker.name for item in session.items for marker in item.iter_markers()} & set(NEEDS)
    for name in sorted(used):
        line = f"need {name}: {'met' if found(name).met else 'NOT met'} ({found(name).detail})"
        session.config.stash[FACTS][line] = None


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_worker(session.config):
        session.config.workeroutput["facts"] = list(session.config.stash[FACTS])  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker found; one that crashed left nothing."""
    node.config.stash[FACTS].update(dict.fromkeys(getattr(node, "workeroutput", {}).get("facts", ())))


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = unmet(item)
    if reason is not None:
        pytest.skip(reason)


def skip_reason(longrepr: object) -> str:
    """Give the reason of a skip as pytest keeps it: (path, line, 'Skipped: reason')."""
    return longrepr[2].removeprefix("Skipped: ") if isinstance(longrepr, tuple) else str(longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    with parallel.turn(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip that no unmet need explains into a failure. An expected failure is a result, not a skip."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and unmet(item) is None:
        named = [marker.name for marker in item.iter_markers() if marker.name in NEEDS]
        report.outcome = "failed"
        report.longrepr = (
            f"skipped although this machine meets what the test says it needs ({', '.join(named) or 'nothing'}): "
            f"{skip_reason(report.longrepr)}\nMark the missing need, or make the test run."
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Hold a module that skips itself to the same rule: without torch it may, with torch it may not.

    A module that cannot be imported where a package of the release's tools is missing is skipped for that.
    """
    report = yield
    name = missing_tool(report)
    if name is not None:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs tools: no package {name} (make env)")
    elif report.skipped and found("torch").met:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} skipped itself although torch is here: {skip_reason(report.longrepr)}\n"
            "A module may skip itself for want of torch alone; mark its tests with what they need instead."
        )
    return report


def missing_tool(report: pytest.CollectReport) -> str | None:
    """Return the package of the tools for want of which a module could not be imported."""
    failure = getattr(report, "call", None) and report.call.excinfo  # type: ignore[attr-defined]
    cause = failure and failure.value.__cause__
    name = (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
    return name if name in TOOLS and importlib.util.find_spec(name) is None else None


def grouped(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> dict[str, Counter[str]]:
    """Put the skipped tests under their reasons, and the cases of one test into one line."""
    groups: dict[str, Counter[str]] = {}
    for report in reports:
        groups.setdefault(skip_reason(report.longrepr), Counter())[report.nodeid.partition("[")[0]] += 1
    return groups


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    facts = terminalreporter.config.stash[FACTS]
    if facts:
        terminalreporter.section("this machine")
    for line in facts:
        terminalreporter.write_line(line)
    groups = grouped(terminalreporter.stats.get("skipped", []))
    if not groups:
        return
    terminalreporter.section("skipped, by reason")
    for reason, tests in sorted(groups.items()):
        terminalreporter.write_line(f"{reason} ({tests.total()})")
        # The names of thousands of tests fit on no screen.
        for test, cases in tests.items() if tests.total() < 100 or terminalreporter.verbosity else ():
            terminalreporter.write_line(f"    {test}" + (f" ({cases} cases)" if cases > 1 else ""))


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> None:
    """Keep the garbage collector from scanning all of torch whenever a test asks for a collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kept_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders by name for what tests fetch: those of pytest's cache, or of this run if that plugin is off."""
    cache = getattr(pytestconfig, "cache", None)
    if cache is not None:
        return cache.mkdir
    place = tmp_path_factory.mktemp("kept")

    def folder(name: str) -> Path:
        (place / name).mkdir(exist_ok=True)
        return place / name

    return folder


@pytest.fixture
def checkout() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def snapshot(pytestconfig: pytest.Config, checkout: Path) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in tests/snapshots, or write it with --update-snapshots."""

    def compare(name: str, text: str) -> None:
        path = checkout / "tests" / "snapshots" / name
        if pytestconfig.getoption("--update-snapshots"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run this test with --update-snapshots and read what it writes"
        assert text == path.read_text(), f"{path} differs: read the difference, then --update-snapshots if it is meant"

    return compare
