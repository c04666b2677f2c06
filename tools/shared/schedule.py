"""Run dependent steps as separate processes, as many at once as there are cores."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from precast.errors import KernelError


@dataclass(frozen=True, slots=True)
class Step:
    """One verb of ``python -m tools`` with its arguments; it writes ``product`` only if something changed."""

    name: str
    kind: str
    words: tuple[str, ...]
    product: Path
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step, and whether its product existed before, unchanged.

    ``said`` is the last line of the output; if the step failed, its name comes first.
    """

    step: Step
    status: int
    seconds: float
    reused: bool
    said: str
    log: Path


class StepFailed(KernelError):
    """A step failed; the message holds the end of its log."""


@dataclass(slots=True)
class Runner:
    """Starts steps, and ends the running ones if it is left early."""

    root: Path
    logs: Path
    env: Mapping[str, str]
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)

    def run(self, step: Step) -> Outcome:
        """Run one step to its end, with its output in its log."""
        log = self.logs / f"{step.name}.log"
        before, started = _stamp(step.product), time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tools", *step.words],
                cwd=self.root,
                env=dict(self.env),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            self.running.add(process)
            status = process.wait()
            self.running.discard(process)
        seconds = time.perf_counter() - started
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reused = status == 0 and before is not None and before == _stamp(step.product)
        said = lines[-1] if lines else ""
        return Outcome(step, status, seconds, reused, f"{step.name}: {said}" if status else said, log)

    @contextmanager
    def leaving_nothing_behind(self) -> Iterator[None]:
        """End the steps that still run if the block is left early; at its normal end, none does."""
        try:
            yield
        finally:
            for process in tuple(self.running):
                process.terminate()


def run_all(
    steps: Sequence[Step],
    runner: Runner,
    jobs: int,
    on_start: Callable[[Step], None],
    on_end: Callable[[Outcome], None],
) -> tuple[Outcome, ...]:
    """Run all steps, each after those it needs; raise the first failure once the other running steps have ended."""
    waiting, done = list(steps), dict[str, Outcome]()
    at_work: dict[Future[Outcome], Step] = {}
    failed: Outcome | None = None
    with ThreadPoolExecutor(max_workers=jobs) as pool, runner.leaving_nothing_behind():
        while at_work or (waiting and failed is None):
            ready = [step for step in waiting if all(name in done for name in step.needs)] if failed is None else []
            for step in ready[: jobs - len(at_work)]:
                waiting.remove(step)
                on_start(step)
                at_work[pool.submit(runner.run, step)] = step
            ended, _ = wait(at_work, return_when=FIRST_COMPLETED)
            for future in ended:
                del at_work[future]
                outcome = future.result()
                on_end(outcome)
                done[outcome.step.name] = outcome
                if outcome.status:
                    failed = failed or outcome
    if failed is not None:
        tail = failed.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-30:]
        raise StepFailed("\n".join((f"{failed.step.name} failed; its whole log: {failed.log}", *tail)))
    return tuple(done[step.name] for step in steps)


def _stamp(path: Path) -> tuple[int, int] | None:
    """A value that changes whenever the file is replaced."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_mtime_ns, facts.st_ino
