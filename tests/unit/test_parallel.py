"""What a run leaves out, and that several processes keep the skip policy and share what takes long to build."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import parallel

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = ROOT / "tests" / "conftest.py"
SHORT_AND_LONG = """
import pytest
def test_short(): pass
@pytest.mark.long
def test_more(): pass
"""
TWO_NEEDS = """
import pytest
@pytest.mark.gpu
def test_gpu(): assert False
@pytest.mark.torch
def test_torch(): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest under the real conftest, on a machine with torch and without a GPU; with workers, in a child."""
    probes = "".join(
        f"\nNEEDS[{name!r}] = Need({name!r}, 'in this test', lambda: Found({met}, 'a fake {name}'))"
        for name, met in (("gpu", False), ("torch", True))
    )
    pytester.makeconftest(CONFTEST.read_text() + probes)
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\ntestpaths = ['.']\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*words: str) -> pytest.RunResult:
        start = pytester.runpytest_subprocess if {"-n1", "-n2"} & {*words} else pytester.runpytest_inprocess
        return start("--strict-markers", *words)

    return run


def test_a_run_that_names_nothing_leaves_out_what_is_long(pytester: pytest.Pytester, run) -> None:
    pytester.makepyfile(SHORT_AND_LONG)
    for processes in ("-n0", "-n2"):
        result = run(processes)
        assert result.parseoutcomes()["passed"] == 1
        (line,) = [line for line in result.outlines if line.startswith("left out")]
        assert line == "left out: 1 tests marked long; make test-all runs them too"


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ("-n0 .", 2),
        ("-n0 test_them.py", 2),
        ("-nauto test_them.py::test_more", 1),
        ("-n0 -k more", 1),
        ("-n0 -k short", 1),
        ("-n0 -m long", 1),
        ("-n2 . -m long", 1),
    ],
)
def test_what_is_named_runs(pytester: pytest.Pytester, run, words: str, passed: int) -> None:
    pytester.makepyfile(test_them=SHORT_AND_LONG)
    result = run(*words.split())
    assert result.parseoutcomes()["passed"] == passed
    result.stdout.no_fnmatch_line("left out*")


@pytest.mark.parametrize("marks", [("large", "gpu"), ("large",), ("gpu",)], ids=str)
def test_tests_that_want_most_of_a_gpu_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    item = SimpleNamespace(get_closest_marker=lambda name: name if name in marks else None)
    with parallel.turn(SimpleNamespace(get_closest_marker=str)):  # another process has its turn
        (lock,) = tmp_path.iterdir()
        other = threading.Thread(target=lambda: parallel.turn(item).__enter__(), daemon=True)
        other.start()
        other.join(0.5)
        assert other.is_alive() is (marks == ("large", "gpu")), lock
    other.join(60)
    assert not other.is_alive()


def test_two_processes_keep_the_policy_and_say_everything_once(pytester: pytest.Pytester, run) -> None:
    not_today = "import pytest\ndef test_it(): pytest.skip('not today')"
    pytester.makepyfile(test_a=TWO_NEEDS, test_b=TWO_NEEDS, test_c=not_today)
    result = run("-n2")
    assert result.ret == 1
    assert result.parseoutcomes() == {"passed": 2, "skipped": 2, "failed": 1}
    result.stdout.fnmatch_lines(["*skipped although this machine meets*(nothing): not today"])
    assert result.outlines.count("need gpu: NOT met (a fake gpu)") == 1
    assert result.outlines.count("need torch: met (a fake torch)") == 1
    assert result.outlines.count("needs gpu: a fake gpu (2)") == 1


def test_each_of_several_processes_computes_in_one_thread(
    pytester: pytest.Pytester, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for processes, threads in (("-n0", None), ("-n2", "1")):
        pytester.makepyfile(f"import os\ndef test_it(): assert os.environ.get('OMP_NUM_THREADS') == {threads!r}")
        assert run(processes).parseoutcomes() == {"passed": 1}


def test_what_a_test_logs_may_be_no_utf8(pytester: pytest.Pytester, run) -> None:
    log = "import logging\ndef test_it():\n    logging.warning('\\udc9b')\n    assert {}, '\\udc9b'\n"
    pytester.makepyfile(test_a=log.format(True), test_b=log.format(False), test_c=TWO_NEEDS)
    assert run("-n2").parseoutcomes() == {"passed": 2, "failed": 1, "skipped": 1}


def test_a_module_that_skips_itself_in_a_worker_fails_the_run(pytester: pytest.Pytester, run) -> None:
    pytester.makepyfile(test_a="import pytest\npytest.importorskip('a_module_that_is_not_there')", test_b=TWO_NEEDS)
    result = run("-n2")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*skipped itself although torch is here*"])


def test_a_folder_that_builds_starts_first_and_stays_in_one_process(pytester: pytest.Pytester, run) -> None:
    for folder in ("tests/property", "tests/wheel"):
        (pytester.path / folder).mkdir(parents=True)
        for name in "abc":
            say = f"import os\ndef test_it(): print('ran', {folder!r}, os.environ['PYTEST_XDIST_WORKER'])\n"
            (pytester.path / folder / f"test_{name}.py").write_text(say)
    alone, said = (
        [line.split()[1:] for line in run(processes, "--import-mode=importlib", "-rP").outlines if line[:4] == "ran "]
        for processes in ("-n1", "-n2")
    )
    assert [folder for folder, _ in alone] == ["tests/wheel"] * 3 + ["tests/property"] * 3, "what takes long is first"
    assert len(said) == 6
    (builder,) = {worker for folder, worker in said if folder == "tests/wheel"}  # whichever was ready first
    assert {worker for folder, worker in said if folder == "tests/property"} - {builder}, "the other one has work too"


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/wheel/test_sbom.py::test_a[x::y/z]", "tests/wheel"),
        ("tests/unit/csrc/test_launch.py::test_a", "tests/unit/csrc"),
        ("tests/unit/csrc_cpu/test_adam.py::test_a", "tests/unit/csrc_cpu/test_adam.py"),
        ("tests/ops/test_adam.py::test_a[wheel]", "tests/ops/test_adam.py"),
        ("tests/hostile/test_adopting.py::test_a[0-cpu]", "tests/hostile/test_adopting.py::test_a[0-cpu]"),
    ],
)
def test_the_unit_of_a_test(nodeid: str, unit: str) -> None:
    assert parallel.unit(nodeid) == unit


def test_the_folders_that_are_named_exist() -> None:
    for folder in {*parallel.BUILDS, *parallel.LONGEST_FIRST}:
        assert (ROOT / folder).is_file() or list((ROOT / folder).glob("**/test_*.py")), folder
