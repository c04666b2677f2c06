"""The skip policy of tests/conftest.py, shown allowing and refusing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import TOOLS
from tests.unit.test_arrows import imports

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run(pytester: pytest.Pytester, test: str, more: str = "", **met: bool) -> pytest.RunResult:
    """Run one test file under the real conftest, on a machine that meets just the needs given as true."""
    probes = "".join(
        f"\nNEEDS[{name!r}] = Need({name!r}, 'in this test', lambda: Found({answer}, {'a fake ' + name!r}))"
        for name, answer in met.items()
    )
    pytester.makeconftest(CONFTEST.read_text() + probes + more)
    pytester.makepyfile("import pytest\n" + test)
    return pytester.runpytest("--strict-markers")


def test_an_unmet_need_skips_and_is_listed(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.gpu\ndef test_it():\n    assert False", gpu=False)
    result.assert_outcomes(skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["need gpu: NOT met (a fake gpu)", "*skipped, by reason*", "needs gpu: a fake gpu (1)", "    *::test_it"]
    )


def test_a_module_that_imports_a_missing_tool_is_skipped_for_that(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "import nowhere.part\ndef test_it():\n    assert False", "\nTOOLS.add('nowhere')", torch=True
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["needs tools: no package nowhere (make env) (1)"])


@pytest.mark.parametrize("imported", ["nowhere", "json.nowhere"])
def test_a_module_that_imports_anything_else_that_is_missing_fails_the_run(
    pytester: pytest.Pytester, imported: str
) -> None:
    result = run(pytester, f"import {imported}\ndef test_it():\n    pass", "\nTOOLS.add('json')", torch=True)
    result.assert_outcomes(errors=1)


def test_the_tools_are_what_the_modules_of_tools_import(checkout: Path) -> None:
    found = {name.partition(".")[0] for file in checkout.glob("tools/**/*.py") for name in imports(file.read_text())}
    assert found - sys.stdlib_module_names - {"torch", "precast", "tools", "tomllib"} == TOOLS


def test_the_cases_of_a_skipped_test_are_one_line(pytester: pytest.Pytester) -> None:
    test = "@pytest.mark.gpu\n@pytest.mark.parametrize('case', range(3))\ndef test_it(case):\n    assert False"
    result = run(pytester, test, gpu=False)
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["needs gpu: a fake gpu (3)", "    *::test_it (3 cases)"])


def test_a_met_need_runs_the_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.gpu\ndef test_it():\n    pass", gpu=True)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["need gpu: met (a fake gpu)"])


def test_a_skip_whose_need_is_met_fails_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.torch\ndef test_it():\n    pytest.skip('not today')", torch=True)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*skipped although this machine meets*(torch): not today"])


@pytest.mark.parametrize(
    "decorator", ["@pytest.mark.skip(reason='later')", "@pytest.mark.skipif(True, reason='later')"]
)
def test_a_skip_that_names_no_need_fails_the_run(pytester: pytest.Pytester, decorator: str) -> None:
    result = run(pytester, f"{decorator}\ndef test_it():\n    pass")
    result.assert_outcomes(errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*skipped although this machine meets*(nothing): later"])


def test_one_unmet_need_among_several_is_enough(pytester: pytest.Pytester) -> None:
    test = "@pytest.mark.torch\n@pytest.mark.container\ndef test_it():\n    assert False"
    run(pytester, test, torch=True, container=False).assert_outcomes(skipped=1)


@pytest.mark.parametrize(("wanted", "outcome"), [(1, "passed"), (2, "skipped")])
def test_a_number_of_gpus_can_be_asked_for(pytester: pytest.Pytester, wanted: int, outcome: str) -> None:
    result = run(pytester, f"@pytest.mark.gpu({wanted})\ndef test_it():\n    pass", gpu=True)
    result.assert_outcomes(**{outcome: 1})


def test_a_module_may_skip_itself_only_without_torch(pytester: pytest.Pytester) -> None:
    test = "pytest.importorskip('a_module_that_is_not_there')\ndef test_it():\n    pass"
    allowed = run(pytester, test, torch=False)
    assert allowed.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    refused = run(pytester, test, torch=True)
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["*skipped itself although torch is here*"])


def test_an_expected_failure_is_not_a_skip(pytester: pytest.Pytester) -> None:
    run(pytester, "@pytest.mark.xfail\ndef test_it():\n    assert False").assert_outcomes(xfailed=1)


def test_an_unknown_need_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.quantum\ndef test_it():\n    pass")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*'quantum' not found in `markers`*"])


def test_probes_are_asked_once(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        CONFTEST.read_text()
        + "\ndef count():\n    print('PROBED')\n    return Found(True, 'here')\nNEEDS['gpu'] = Need('gpu', '', count)\n"
    )
    pytester.makepyfile(
        "import pytest\n@pytest.mark.gpu\n@pytest.mark.parametrize('i', range(3))\ndef test_it(i): pass"
    )
    result = pytester.runpytest("-s")
    result.assert_outcomes(passed=3)
    assert result.stdout.str().count("PROBED") == 1
