"""A stranger's machine: an empty home, no variable of ours, one interpreter, one folder of wheels."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# What a machine needs to reach a package index at all: where it is, and how to get there.
REACHING = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_CERT",
    "PIP_PROXY",
    "PIP_TRUSTED_HOST",
    "PIP_DEFAULT_TIMEOUT",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "LANG",
    "LC_ALL",
)
# Where Linux keeps programs. The PATH of whoever runs this is not a stranger's.
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
OLDEST = (3, 10)
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody answers


class NotRun(Exception):
    """This machine cannot be such a machine; the text says what it lacks."""


class StepFailed(Exception):
    """A command failed; the text ends with the end of its log."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python to start from: its own program, not a shim or a virtual environment."""

    path: str
    version: tuple[int, int]

    @property
    def folder(self) -> str:
        return str(Path(self.path).parent)

    def __str__(self) -> str:
        return f"Python {self.version[0]}.{self.version[1]}"


def ask(program: str) -> Interpreter | None:
    """The interpreter behind a program; None for what does not run, or cannot make an environment."""
    code = "import sys, venv, ensurepip; print(sys._base_executable); print(*sys.version_info[:2])"
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 2 or not (Path(lines[0]).parent / "python3").exists():
        return None
    major, minor = map(int, lines[1].split())
    return Interpreter(lines[0], (major, minor))


def interpreters(listed: str, path: str) -> list[Interpreter]:
    """Every python3 and python3.N in the folders of PATH, then those of PYTHONS, separated by colons."""
    names = ["python3", *(f"python3.{minor}" for minor in range(10, 30))]
    folders = path.split(os.pathsep)
    programs = [found for folder in folders for name in names if (found := shutil.which(name, path=folder))]
    programs += [word for word in listed.split(os.pathsep) if word]
    asked = filter(None, map(ask, programs))
    return list(dict.fromkeys(interpreter for interpreter in asked if interpreter.version >= OLDEST))


def environment(home: Path, interpreter: Interpreter, wheels: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a fresh login: nothing of ours, and no setting of pip but where packages come from."""
    kept = {name: inherited[name] for name in REACHING if name in inherited}
    return {
        **kept,
        "HOME": str(home),
        "PATH": os.pathsep.join([interpreter.folder, *SYSTEM_PATH]),
        "PIP_FIND_LINKS": wheels.as_uri(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@dataclass
class Machine:
    """One row's machine. A row changes it before the first command; ``said`` collects the seconds of each step."""

    folder: Path
    interpreter: Interpreter
    env: dict[str, str]
    logs: Path
    torch: str
    home: Path = field(init=False)
    checkout: Path = field(init=False)
    archive: bool = False
    user: tuple[int, int] | None = None
    umask: int = -1
    offline: bool = False  # from the moment both environments are there
    unplugged: bool = field(default=False, init=False)
    seconds: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.home, self.checkout = Path(self.env["HOME"]), self.folder / "precast"

    def fetch_sources(self) -> None:
        """A clean clone, or what an archive of the last commit unpacks to."""
        if self.archive:
            self.checkout.mkdir()
            pipe = f"git archive HEAD | tar -x -C {shlex.quote(str(self.checkout))}"
            subprocess.run(["bash", "-euo", "pipefail", "-c", pipe], cwd=CHECKOUT, check=True)
        else:
            clone = ["git", "clone", "-q", "--no-hardlinks", str(CHECKOUT), str(self.checkout)]
            subprocess.run(clone, check=True)
        if self.user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, *self.user, follow_symlinks=False)

    def run(self, step: str, *commands: str, cwd: Path | None = None, path: Sequence[Path] = ()) -> str:
        """Run the commands of a step in a shell, one after the other, and return what they said."""
        env = {**self.env, "PATH": os.pathsep.join([*map(str, path), self.env["PATH"]])}
        words = ["bash", "-euo", "pipefail", "-c", "\n".join(commands)]
        if self.unplugged:
            words, env = without_network(words, env)
        log = self.logs / f"{len(self.seconds) + 1}-{step}.log"
        started = time.monotonic()
        with log.open("wb") as output:
            done = subprocess.run(
                words,
                cwd=cwd or self.checkout,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                umask=self.umask,
                **({} if self.user is None else {"user": self.user[0], "group": self.user[1], "extra_groups": ()}),
            )
        self.seconds[step] = time.monotonic() - started
        said = log.read_text(encoding="utf-8", errors="replace")
        if done.returncode:
            end = "\n".join(said.strip().splitlines()[-25:])
            raise StepFailed(f"{' && '.join(commands)}: exit status {done.returncode}; its whole log: {log}\n{end}")
        return said


def without_network(words: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The same command where no other host can be reached: in a network of its own, else behind a proxy to nowhere."""
    for options in (["-n"], ["-r", "-n"]):
        tried = ["unshare", *options]
        if (
            shutil.which("unshare")
            and subprocess.run([*tried, "true"], capture_output=True, check=False).returncode == 0
        ):
            return [*tried, *words], env
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_PROXY"), NOWHERE)
    return words, {**env, **proxies, "no_proxy": "", "NO_PROXY": ""}


def unprivileged() -> tuple[int, int] | None:
    """Somebody else's ids, if we are root and the permissions of files do not bind us; None if they do already."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def reachable(path: str, user: tuple[int, int] | None) -> bool:
    """Whether a user can run this program."""
    more = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": ()}
    try:
        return subprocess.run([path, "-c", ""], cwd="/", capture_output=True, check=False, **more).returncode == 0
    except OSError:
        return False
