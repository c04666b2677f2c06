"""The runner of mutants, on a toy package: each verdict, what is changed and what is not, stale entries."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import covered, equivalent, mutants
from tests.mutation.equivalent import Equivalent
from tests.mutation.mutants import Mutant
from tests.mutation.runner import Project, Runner, Verdict, runs_at_import, statement_start

needs_mutants = pytest.mark.mutants
TOY = '''\
"""A toy: 1 < 2."""

from __future__ import annotations

LIMIT = 3


def small(number: int | None) -> bool:
    return number is not None and number < LIMIT


def clamped(number: int) -> int:
    if number > LIMIT:
        return LIMIT
    return number


def count_down(number: int) -> int:
    while number > 0:
        number -= 1
    return number


def nobody_calls(number: int) -> int:
    return number + 1
'''
TESTS = """\
import time

import pytest

import toy


@pytest.mark.parametrize(("number", "answer"), [(None, False), (2, True), (3, False)])
def test_small(number, answer):
    assert toy.small(number) is answer


def test_clamped():
    assert toy.clamped(2) == 2
    assert toy.clamped(4) == 3


def test_count_down():
    assert toy.count_down(2) == 0


def test_limit():
    assert toy.LIMIT == 3


def test_waits():
    time.sleep(0.6)


def test_broken():
    assert not toy.small(2)
"""


def changed(old: str, new: str, source: str = TOY) -> Mutant:
    """Make the mutant that replaces one text with another."""
    assert source.count(old) == 1
    mutated = source.replace(old, new)
    line = source[: source.index(old)].count("\n") + 1
    return Mutant("pkg/toy.py", line, 0, "By hand", *mutants.changed(source, mutated), mutated)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    checkout = tmp_path_factory.mktemp("checkout")
    for name, text in {
        "pkg/toy.py": TOY,
        "tests/test_toy.py": TESTS,
        "ignored.txt": "",
        ".gitignore": "ignored.txt\n",
    }.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    made = Project(checkout, tmp_path_factory.mktemp("place"), ("pkg/*.py",), ("tests/test_*.py",))
    made.copy()
    return made


@pytest.fixture(scope="module")
def measured(project: Project) -> Path:
    return covered.measure(project.tree, project.files, project.test_files, project.marks, project.environment)


@pytest.fixture
def runner(project: Project, measured: Path) -> Runner:
    return Runner(project, covered.read(project.tree, measured), ())


def test_the_copy_has_what_git_would_add_and_follows_the_checkout(project: Project) -> None:
    assert (project.tree / "pkg" / "toy.py").read_text() == TOY
    assert not (project.tree / "ignored.txt").exists()
    (project.checkout / "more.txt").write_text("1")
    project.copy()
    assert (project.tree / "more.txt").read_text() == "1"
    (project.checkout / "more.txt").write_text("2")
    project.copy()
    assert (project.tree / "more.txt").read_text() == "2"
    (project.checkout / "more.txt").unlink()
    project.copy()
    assert not (project.tree / "more.txt").exists()


@needs_mutants
def test_a_test_costs_the_processor_seconds_that_it_takes(project: Project, measured: Path) -> None:
    assert 0 <= covered.read(project.tree, measured).good["tests/test_toy.py::test_waits"] < 0.4


def test_two_runs_do_not_share_a_copy(project: Project) -> None:
    with project.alone(), pytest.raises(BlockingIOError), project.alone():
        pass
    with project.alone():
        pass


@needs_mutants
def test_each_line_knows_the_tests_that_run_it(runner: Runner) -> None:
    line = TOY[: TOY.index("return number is")].count("\n") + 1
    assert runner.tests.of_lines("pkg/toy.py", [line]) == ["tests/test_toy.py::test_small"]
    assert "tests/test_toy.py::test_broken" in runner.tests.bad
    assert "tests/test_toy.py::test_limit" in runner.tests.beside("pkg/toy.py")
    assert set(runner.tests.of_file("pkg/toy.py")) == {
        f"tests/test_toy.py::test_{name}" for name in ("small", "clamped", "count_down")
    }


@needs_mutants
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("number < LIMIT", "number <= LIMIT", Verdict.KILLED),
        ("LIMIT = 3", "LIMIT = 4", Verdict.KILLED),  # a line that only the import runs
        ("number > LIMIT", "number >= LIMIT", Verdict.SURVIVED),
        ("number + 1", "number - 1", Verdict.SURVIVED),  # a line that no test runs
        ("number -= 1", "number -= 0", Verdict.TIMED_OUT),
    ],
)
def test_every_verdict(runner: Runner, old: str, new: str, verdict: Verdict) -> None:
    mutant = changed(old, new)
    if verdict is Verdict.TIMED_OUT:
        runner.project = replace(runner.project, seconds=5.0)
    counts, survivors = runner.run_all([mutant])
    assert counts == {verdict: 1}
    assert survivors == ([mutant] if verdict is Verdict.SURVIVED else [])
    assert (runner.project.tree / "pkg" / "toy.py").read_text() == TOY
    assert (runner.project.checkout / "pkg" / "toy.py").read_text() == TOY


@needs_mutants
def test_the_test_that_is_about_a_text_comes_first(runner: Runner) -> None:
    mutant = changed("LIMIT = 3", "LIMIT = 4")
    for name in ("count_down", "limit"):
        test = f"tests/test_toy.py::test_{name}"
        runner.project = replace(runner.project, telling=(("LIMIT =", test), ("no such text", "no such test")))
        (tests,) = runner.rounds(mutant)
        assert tests[0] == test and len(tests) == len(set(tests)) == 5


@needs_mutants
def test_mutants_of_one_size_are_told_apart(runner: Runner) -> None:
    assert [runner.verdict(changed("LIMIT = 3", f"LIMIT = {limit}"))[0] for limit in (5, 2)] == [Verdict.KILLED] * 2
    assert runner.verdict(changed("number > LIMIT", "LIMIT < number"))[0] is Verdict.SURVIVED


@needs_mutants
def test_a_recorded_mutant_is_not_run(project: Project, measured: Path) -> None:
    entry = Equivalent("pkg/toy.py", "if number > LIMIT:", "if number >= LIMIT:", "the limit itself is returned")
    runner = Runner(project, covered.Covered(), [entry])
    assert runner.verdict(changed("number > LIMIT", "number >= LIMIT"))[0] is Verdict.EQUIVALENT
    assert runner.verdict(changed("number > LIMIT", "number < LIMIT"))[0] is Verdict.SURVIVED


@needs_mutants
def test_survivors_are_found_again(runner: Runner) -> None:
    wanted = "if number >= LIMIT:"
    there = next(
        place for place in mutants.places(TOY) if TOY.splitlines()[place[0] - 1].strip() == "if number > LIMIT:"
    )
    drawn = mutants.mutants_at("pkg/toy.py", TOY, there, mutants.places(TOY)[there])
    assert wanted in [one.after for one in drawn]
    _, survivors = runner.run_all(drawn)
    assert survivors
    assert runner.last_survivors() == survivors
    runner.run_all([])
    assert runner.last_survivors() == []


@needs_mutants
def test_the_report_counts_the_branches_that_no_test_takes(project: Project, measured: Path) -> None:
    assert list(covered.report(project.tree, measured, project.files)) == [("pkg/toy.py", 4, 0, [])]


def test_an_entry_that_matches_no_line_is_stale(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.toml"
    file.write_text(
        '[[equivalent]]\nfile = "*toy.py"\nline = "LIMIT = 3"\nto = "LIMIT = 2"\nreason = "r"\n'
        '[[equivalent]]\nfile = "*toy.py"\nline = "LIMIT = 2"\nto = "LIMIT = 1"\nreason = "r"\n'
        '[[equivalent]]\nfile = "gone.py"\nline = "LIMIT = 3"\nto = "LIMIT = 2"\nreason = "r"\n'
        '[[equivalent]]\nfile = "pkg/toy.py"\nline = """return LIMIT\nreturn number"""\nto = ""\nreason = "r"\n'
    )
    entries = equivalent.read(file)
    assert equivalent.stale(entries, {"pkg/toy.py": TOY}) == entries[1:3]


def test_the_lines_of_a_change() -> None:
    assert mutants.changed("a\n  b\nc\n", "a\n  d\nc\n") == ("b", "d")
    assert mutants.changed("a\n@b\nc\n", "a\nc\n") == ("@b", "")
    assert changed("LIMIT = 3", "LIMIT = 4").diff(TOY).splitlines()[-4:] == [" ", "-LIMIT = 3", "+LIMIT = 4", " "]


def test_a_line_belongs_to_the_statement_around_it() -> None:
    source = "x = (\n    1,\n    2,\n)\nif x:\n    y = [\n        3]\n"
    assert [statement_start(source, line) for line in range(1, 8)] == [1, 1, 1, 1, 5, 6, 6]


def test_what_runs_at_import_is_told_from_what_a_call_runs() -> None:
    source = "A = 1\nclass B:\n    c: int = 2\n    @property\n    def d(\n        self,\n    ):\n        return 3\n"
    assert [runs_at_import(source, line) for line in range(1, 9)] == [True] * 7 + [False]


@needs_mutants
@pytest.mark.parametrize(
    "source",
    [
        '"""1 < 2."""\n',
        '__all__ = ["a"]\n',
        'log("1 if x else 2")\n',
        "def f(a: int | None, b: dict[int, A | B] = {}) -> A | None: ...\n",
        "x: A | B\n",
        "@functools.cache\ndef f(): ...\n",
        "if TYPE_CHECKING:\n    import a\n",
        'if __name__ == "__main__":\n    main()\n',
        "zip(a, b, strict=True)\n",
    ],
)
def test_what_no_test_could_notice_is_not_changed(source: str) -> None:
    assert mutants.places(source) == {}


@needs_mutants
@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("a < b\n", {"a <= b", "a >= b"}),
        ("a == b\n", {"a != b"}),
        ("a = 1\n", {"a = 2", "a = 0"}),
        ("if a: b\n", {"if not a: b"}),
        ("a and b\n", {"a or b"}),
        ("x = a if b else c\n", {"x = a if not b else c"}),
        ("for a in b: c\n", {"for a in []: c"}),
        ("f(a=True)\n", {"f(a=False)"}),
        ("x: int = a - b\n", {"x: int = a + b"}),
        ("def f(a: int = 1): ...\n", {"def f(a: int = 2): ...", "def f(a: int = 0): ..."}),
        ("@property\ndef f(): ...\n", {""}),
    ],
)
def test_what_is_changed(source: str, made: set[str]) -> None:
    drawn = {
        one.after
        for place, ways in mutants.places(source).items()
        for one in mutants.mutants_at("a.py", source, place, ways)
    }
    assert {" ".join(after.split()) for after in drawn} == made


@needs_mutants
def test_a_seed_draws_the_same_mutants_and_no_place_twice() -> None:
    sources = {"a.py": TOY, "b.py": TOY}
    first, again, other = (mutants.draw(sources, 8, seed) for seed in (7, 7, 8))
    assert first == again != other
    assert len(first) == 8 == len({(one.file, one.line, one.column) for one in first})
    assert len(mutants.draw(sources, 1000, 7)) == 2 * len(mutants.places(TOY))
