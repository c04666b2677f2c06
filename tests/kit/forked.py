"""Fresh Pythons that have imported torch: forked from one that did nothing else, which saves its import each time.

``run(code, env=..., cwd=...)`` is ``subprocess.run([sys.executable, "-c", code], ...)`` for code that imports torch
anyway. A child has the environment, the folder and the search path it is given. No module but torch's, no library,
thread or cache of one child is seen by the next, for the server itself runs none of their code. What a fork cannot
give gets a process of its own: a path that offers another torch, and variables that Python, the linker or torch read
as they start, until a second process wants the same. All children of a server have the same seed for hashes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Variables that nothing reads before the code runs. There is a server for each set of the others.
LATE = ("PRECAST_", "XDG_", "HOME", "TMPDIR", "PATH", "PYTHONPATH", "MAX_JOBS", "CXX", "TORCH_CUDA_ARCH_LIST")
LATE += ("TORCHINDUCTOR_CACHE_DIR", "CUDA_", "TRITON_INTERPRET", "NO_COLOR", "CCACHE_DISABLE", "PIP_", "http")
LATE += ("GPUS", "DRIVER", "GUARDED_OPS")  # of tests
MOST_SERVERS = 3  # each has the memory of torch
_servers: dict[str, Server | None] = {}
_one_at_a_time = threading.Lock()


def run(
    code: str,
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    options: tuple[str, ...] = (),
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run code and return its status and what it printed; ``options`` are Python's own, such as ``-W error``."""
    server = _server(options, env)
    if server is None or server.is_shadowed(env.get("PYTHONPATH", "")):
        return run_anew(code, *arguments, env=env, cwd=cwd, options=options, timeout=timeout)
    return server.fork({"code": code, "arguments": arguments, "env": dict(env), "cwd": str(cwd)}, timeout)


def run_anew(
    code: str,
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    options: tuple[str, ...] = (),
    timeout: float = 300,
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    """Do the same in a process that begins with nothing, for tests of what an import brings."""
    command = [python, *options, "-c", code, *arguments]
    return subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
    )


def run_command(command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """What ``precast._builder.process.run`` does with a command of ``precast._builder.python``, in a fork."""
    code = command.index("-c") + 1  # which sets the search path as well, so that -P would change nothing
    done = run(command[code], *command[code + 1 :], env=environment, cwd=Path.cwd())
    log.write_text(done.stdout + done.stderr)
    return done.returncode, done.stdout + done.stderr


def _server(options: tuple[str, ...], env: Mapping[str, str]) -> Server | None:
    """Return the server for what is read as a process starts; None the first time, and if there are many already."""
    early = {name: value for name, value in env.items() if not name.startswith((*LATE, "PYTEST_"))}
    key = json.dumps([options, sorted(early.items())])
    with _one_at_a_time:
        if key not in _servers or (_servers[key] is None and sum(map(bool, _servers.values())) < MOST_SERVERS):
            _servers[key] = Server(options, early) if key in _servers else None
        return _servers[key]


class Server:
    """A process that has imported torch and waits for requests until this one ends."""

    def __init__(self, options: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, *options, __file__, str(theirs.fileno())]
            files = [theirs.fileno()]
            self._process = subprocess.Popen(command, env=env, pass_fds=files, stdin=subprocess.DEVNULL)
        imported = self._requests.recv(1 << 20)
        if not imported:
            self.close()
            raise RuntimeError(f"the process that imports torch ended: {self._process.returncode}")
        # Python imports these two where it finds them as it starts.
        self._taken = {*json.loads(imported), "sitecustomize", "usercustomize"}
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; its children go on."""
        self._requests.close()
        self._process.wait()

    def is_shadowed(self, path: str) -> bool:
        """Return whether a process with this PYTHONPATH would import something else than this server has."""
        places = [Path(place) for place in path.split(os.pathsep) if Path(place).is_dir()]
        return any(file.name.partition(".")[0] in self._taken for place in places for file in place.iterdir())

    def fork(self, request: Mapping[str, Any], timeout: float) -> subprocess.CompletedProcess[str]:
        """Run the code of a request in a child."""
        ours, theirs = socket.socketpair()
        with ours, ours.makefile() as answers, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with theirs:
                files = [out.fileno(), err.fileno(), theirs.fileno()]
                socket.send_fds(self._requests, [json.dumps(request).encode()], files)
            ours.settimeout(timeout)
            child = int(answers.readline())
            try:
                status = int(answers.readline())
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(request["code"]), timeout) from None
            out.seek(0), err.seek(0)
            said = [file.read().decode(errors="replace") for file in (out, err)]
        return subprocess.CompletedProcess(str(request["code"]), status, *said)


def serve(requests: socket.socket) -> Any:
    """Fork for each request; returns in the child, which then runs the code."""
    end_threads()
    imported = sorted({name.partition(".")[0] for name in sys.modules} - {"__main__"})
    requests.send(json.dumps(imported).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (child := os.fork()) == 0:
                become(files)
                return json.loads(message)
            answer = socket.socket(fileno=files[2])
            with contextlib.suppress(BrokenPipeError):  # it did not want to wait any longer
                answer.send(f"{child}\n".encode())
                answer.send(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
            os._exit(0)
        for file in files:
            os.close(file)


def end_threads() -> None:
    """A child has the locks of other threads, but not the threads that hold them; those of OpenBLAS end at a fork."""
    with warnings.catch_warnings(action="ignore") if sys.version_info >= (3, 11) else contextlib.nullcontext():
        if os.fork() == 0:
            os._exit(0)
    os.wait()
    for _ in range(100):
        if len(list(Path("/proc/self/task").iterdir())) == 1:
            return
        time.sleep(0.01)  # the kernel takes a while to forget one
    raise RuntimeError("something has started a thread")


def become(files: list[int]) -> None:
    """Take the files of a request for output and for errors."""
    for file, number in zip(files, (1, 2), strict=False):
        os.dup2(file, number)
    for file in files:
        os.close(file)


def program(request: Any) -> tuple[types.CodeType, dict[str, Any]]:
    """Make this process what Python is before it runs the code of ``-c``, and return that and its names."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["arguments"]]
    sys.path[:1] = ["", *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.excepthook = report
    sys.modules["torch"].default_generator.seed()
    return compile(request["code"], "<string>", "exec"), main.__dict__


def report(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Print an error that ends the code, without the frame of this file above it."""
    sys.__excepthook__(kind, error.with_traceback(trace and trace.tb_next), None)


if __name__ == "__main__":
    import torch  # noqa: F401 - what a child need not do again

    gc.freeze()  # a collection in a child would copy all of it
    exec(*program(serve(socket.socket(fileno=int(sys.argv[1])))))  # noqa: S102 - the code of a test
