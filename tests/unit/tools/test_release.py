"""A release on one machine: its steps and their order, what is refused at once, what a failure leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from precast._builder import matrix
from precast.errors import KernelError
from tests.kit import spawn
from tools.shared import schedule, wheelhouse
from tools.shared.cells import Plan, expand
from tools.shared.schedule import Outcome, Runner, Step
from tools.verbs import release


@pytest.fixture(scope="module")
def known() -> matrix.Matrix:
    return matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")


@pytest.fixture(scope="module")
def plan(known: matrix.Matrix) -> Plan:
    return expand(known, known.event("release"))


def test_each_built_cell_is_one_step_and_needs_what_it_takes(plan: Plan, tmp_path: Path) -> None:
    steps = {step.name: step for step in release.steps_of(plan, tmp_path, "cibuildwheel")}
    built = {cell.name for cell in (*plan.device, *plan.host, *plan.wheel) if not cell.not_built}
    assert built <= set(steps) and set(steps) - built <= {"sdist", "check-set", "index"}
    default = steps["wheel-default-x86_64"]
    assert {"device-cu128", "device-cu130", "host-kernels-x86_64", "sdist"} <= set(default.needs)
    assert "--fresh" in steps["index"].words and steps["index"].needs == ("check-set",)
    assert set(steps["check-set"].needs) == {"sdist", *(name for name in built if name.startswith("wheel-"))}
    for step in steps.values():
        assert set(step.needs) <= set(steps)


def test_long_steps_start_before_short_ones(plan: Plan, tmp_path: Path) -> None:
    """Device code by its images, the two libraries of all kernels, adapters, and then what needs all of these."""
    steps = list(release.steps_of(plan, tmp_path, "hooks"))
    kinds = [step.kind for step in steps]
    assert list(dict.fromkeys(kinds)) == ["device code", "host libraries", "sdist", "wheels", "checks", "index"]
    images = [len(cell.targets) for step in steps for cell in plan.device if cell.name == step.name]
    assert images == sorted(images, reverse=True) and images[0] > images[-1]
    hosts = [step.name.partition("-")[0] for step in steps if step.kind == "host libraries"]
    assert hosts == sorted(hosts, reverse=True) and hosts[:3] == ["host", "host", "adapter"]


def test_another_architecture_is_never_left_to_a_container_of_this_one() -> None:
    here = os.uname().machine
    assert release.driver_of(here, "cibuildwheel") == "cibuildwheel"
    assert release.driver_of("another", "cibuildwheel") == "hooks"


def test_without_an_engine_the_hooks_run_here_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CIBW_CONTAINER_ENGINE", "podman; create_args: --network=host")
    assert release.choose_driver("auto") == ("hooks", "no podman on PATH")
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\nexit 1\n")
    engine.chmod(0o755)
    assert release.choose_driver("auto") == ("hooks", "podman does not answer")
    engine.write_text("#!/bin/sh\nexit 0\n")
    assert release.choose_driver("auto") == ("cibuildwheel", "podman answers")
    assert release.choose_driver("hooks") == ("hooks", "as asked")


@pytest.mark.parametrize(
    ("stranger", "line"),
    [
        ("README", "README: not part of a release"),
        ("parts/device-cu999/parts.json", "parts/device-cu999: no cell of the plan makes that"),
        ("wheelhouse/precast-9.9-py3-none-any.whl", "wheelhouse/precast-9.9-py3-none-any.whl: no cell"),
    ],
)
def test_a_folder_with_strangers_is_refused(
    plan: Plan, known: matrix.Matrix, tmp_path: Path, stranger: str, line: str
) -> None:
    release.refuse_strangers(tmp_path, plan, known)
    (tmp_path / stranger).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / stranger).write_text("")
    with pytest.raises(KernelError) as refused:
        release.refuse_strangers(tmp_path, plan, known)
    assert line in str(refused.value) and "fix     1) remove what is named" in str(refused.value)


def test_a_changed_wheel_is_refused(plan: Plan, known: matrix.Matrix, tmp_path: Path) -> None:
    name = release.expected(plan, known)["wheel-cpu-x86_64"]
    (tmp_path / name).write_bytes(b"a wheel")
    record = wheelhouse.put(tmp_path / "out" / "wheelhouse", "wheel-cpu-x86_64", "key", tmp_path / name, 1.0)
    release.refuse_strangers(tmp_path / "out", plan, known)
    (tmp_path / "out" / "wheelhouse" / name).write_bytes(b"another")
    with pytest.raises(KernelError, match=f"{record.sha256}") as refused:
        release.refuse_strangers(tmp_path / "out", plan, known)
    assert name in str(refused.value)


def test_two_releases_cannot_be_made_in_one_folder(tmp_path: Path) -> None:
    from precast._builder import lock

    with (
        lock.exclusive(tmp_path / release.LOCK, "the first"),
        pytest.raises(KernelError, match="another release being made"),
    ):
        release.make(tmp_path, "pr", "hooks", 1)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose ``python -m tools`` writes, sleeps or fails, as it is told."""
    tools = tmp_path / "project" / "tools"
    tools.mkdir(parents=True)
    (tools / "__init__.py").touch()
    (tools / "__main__.py").write_text(
        "import os, sys, time\n"
        "what, *rest = sys.argv[1:]\n"
        "if what == 'write' and not os.path.exists(rest[0]): open(rest[0], 'w').write('x')\n"
        "if what == 'sleep': open(rest[0], 'w').write(str(os.getpid())); time.sleep(60)\n"
        "print(f'{what} was done')\n"
        "sys.exit(what == 'fail')\n"
    )
    (tmp_path / "logs").mkdir()
    return tools.parent


def run(project: Path, steps: list[Step], jobs: int = 2) -> tuple[list[str], tuple[Outcome, ...]]:
    told: list[str] = []
    runner = Runner(project, project.parent / "logs", os.environ)
    outcomes = schedule.run_all(
        steps, runner, jobs, lambda step: told.append(f"+{step.name}"), lambda end: told.append(f"-{end.step.name}")
    )
    return told, outcomes


def test_steps_run_after_what_they_need_and_are_reused(project: Path) -> None:
    product = project / "product"
    first = Step("first", "kind", ("write", str(product)), product)
    second = Step("second", "kind", ("other",), project / "none", ("first",))
    told, outcomes = run(project, [second, first])
    assert told == ["+first", "-first", "+second", "-second"]
    assert [(end.step.name, end.reused, end.said) for end in outcomes] == [
        ("second", False, "other was done"),
        ("first", False, "write was done"),
    ]
    _, outcomes = run(project, [first])
    assert outcomes[0].reused


def test_a_failure_shows_its_log_and_starts_nothing_more(project: Path) -> None:
    none = project / "none"
    steps = [Step("bad", "kind", ("fail",), none), Step("after", "kind", ("other",), none, ("bad",))]
    ended: list[Outcome] = []
    runner = Runner(project, project.parent / "logs", os.environ)
    with pytest.raises(schedule.StepFailed, match="fail was done") as failed:
        schedule.run_all(steps, runner, 2, lambda step: None, ended.append)
    assert [(end.status, end.said) for end in ended] == [(1, "bad: fail was done")]
    assert str(project.parent / "logs" / "bad.log") in str(failed.value)
    assert not (project.parent / "logs" / "after.log").exists()


def test_an_interrupted_release_ends_what_it_started(project: Path) -> None:
    said = project / "pid"
    code = (
        "import os, signal, sys; from pathlib import Path; from tools.shared import schedule\n"
        # A shell's background job has it ignored, and hands that on.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "root, said = map(Path, sys.argv[1:])\n"
        "step = schedule.Step('long', 'kind', ('sleep', str(said)), root / 'none')\n"
        "runner = schedule.Runner(root, root.parent / 'logs', os.environ)\n"
        "schedule.run_all([step], runner, 1, lambda _: None, lambda _: None)\n"
    )
    env = spawn.environ(PYTHONPATH=spawn.search_path(spawn.CHECKOUT))
    with spawn.started(sys.executable, "-c", code, project, said, env=env, stderr=subprocess.DEVNULL) as whole:
        child = int(spawn.wait_for(lambda: said.exists() and said.read_text()))
        whole.send_signal(signal.SIGINT)
        assert whole.wait(timeout=30) != 0
    spawn.wait_for(lambda: not Path(f"/proc/{child}").exists())
