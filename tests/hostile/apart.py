"""Cases in child processes: each is written down before it runs, so that a signal or a hang has a name."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "tests.hostile", "--child")
MEMORY = 3 << 30  # of a child beyond what it begins with; no example needs a hundredth of it
SECONDS = 60  # for one case
BATCH = 2000  # cases in one child
Judge = Callable[[Any], dict[str, str]]


@dataclass
class Outcome:
    """How many cases went in which way, and what broke the law, by case."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: dict[str, str] = field(default_factory=dict)


def run(cases: Sequence[Any], device: str, say: Callable[[str], None] = lambda line: None, jobs: int = 1) -> Outcome:
    """All cases, in so many processes at a time; after one that ends its child, the others go on in another one."""
    outcome = Outcome()
    with ThreadPoolExecutor(jobs) as threads:
        for part in threads.map(lambda i: _part(cases[i::jobs], device, say), range(jobs)):
            outcome.counts += part.counts
            outcome.broken |= part.broken
    return outcome


def _part(cases: Sequence[Any], device: str, say: Callable[[str], None]) -> Outcome:
    outcome = Outcome()
    left = list(cases)
    while left:
        told = len(outcome.broken)
        left = left[_child(left[:BATCH], device, outcome) :]
        for case, text in list(outcome.broken.items())[told:]:
            say(f"{case}: {text}")
    return outcome


def _child(cases: Sequence[Any], device: str, outcome: Outcome) -> int:
    """Runs cases in one child; returns how many are over."""
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as errors:
        given.writelines(json.dumps(asdict(case)) + "\n" for case in cases)
        given.seek(0)
        command = [*COMMAND, "--device", device]
        child = subprocess.run(command, stdin=given, stdout=subprocess.PIPE, stderr=errors, check=False)
        errors.seek(0)
        said = errors.read()[-2000:]
    told = [json.loads(line) for line in child.stdout[: child.stdout.rfind(b"\n") + 1].splitlines()]
    if not told:
        raise RuntimeError(f"the child ended with {_end(child.returncode)} before the first case: {said}")
    if "begin" in told[-1]:
        told.append({"how": "broken", "broken": f"{_end(child.returncode)}: {said.strip()[-400:]}"})
    begun = 0
    for line in told:
        begun = line.get("begin", begun)
        if "how" in line:
            outcome.counts[line["how"]] += 1
        if "broken" in line:
            outcome.broken[str(cases[begun])] = line["broken"]
    return begun + 1


def _end(status: int) -> str:
    """How a process ended."""
    if status == -signal.SIGALRM:
        return f"hung for {SECONDS} s"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def child(device: str) -> None:
    """The cases on standard input, one after the other."""
    import torch

    from tests.hostile import law
    from tests.hostile.calls import calls

    torch.set_num_threads(1)
    calls()  # once, on the CPU: a fork inherits it, and no GPU knows of this process yet
    lines = [json.loads(line) for line in sys.stdin]
    cases = [law.Case(line["call"], tuple(line["path"]), line["change"], line["backward"]) for line in lines]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _tell({})
    if device == "cuda":  # a fork has no use of a GPU that its parent has used
        in_turn(cases, 0, lambda case: law.judged(case, device))
        return
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    forked(cases, lambda case: law.judged(case, device))


def in_turn(
    cases: Sequence[Any], first: int, judged: Judge, note: Callable[[int], object] = lambda number: None
) -> None:
    """Judges the cases from ``first`` on in this process, until one of them ends it. A hang shows its stack."""
    for number, case in enumerate(cases[first:], first):
        note(number)
        _tell({"begin": number})
        faulthandler.dump_traceback_later(0.9 * SECONDS)
        signal.alarm(SECONDS)
        facts = judged(case)
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        _tell(facts)
        if "the GPU failed" in facts.get("broken", ""):
            os._exit(0)  # its context is lost


def forked(cases: Sequence[Any], judged: Judge) -> None:
    """Judges cases in forks of this process: the next fork goes on behind a case that ended one."""
    begun = mmap.mmap(-1, 8)  # shared

    def note(number: int) -> None:
        begun[:] = number.to_bytes(8, "little")

    first = 0
    while first < len(cases):
        _tell({})
        fork = os.fork()
        if fork == 0:
            in_turn(cases, first, judged, note)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        number = int.from_bytes(begun[:], "little")
        if status != 0:
            _tell({"how": "broken", "broken": _end(status)})
        first = number + 1


def _tell(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
