"""NVRTC in a child process, because NVRTC ends its process if memory runs out ("LLVM ERROR: out of memory").

The child reads one request from its standard input and writes one answer: a length, that many bytes of JSON, then the
image and the PTX. It starts without site-packages, and imports only this package and the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from precast._builder import python
from precast._builder.nvrtc import Compiled, Compiler
from precast.core.host import Nvrtc

_LENGTH = struct.Struct("<Q")
_START = """
import sys
sys.path.append(sys.argv[1])
from precast._builder import nvrtc_child
nvrtc_child.answer(int(sys.argv[2]))
"""
_PACKAGE = str(Path(__file__).resolve().parents[2])


def open_nvrtc(found: Nvrtc) -> Compiler | Isolated:
    """Open a library that ``find_nvrtc`` has found, in child processes, so that a crash ends only those."""
    return Isolated(found) if python.interpreter() else Compiler(found.path, found.builtins)


class Isolated:
    """The interface of :class:`Compiler` that builds use, with one child for each compile."""

    def __init__(self, found: Nvrtc) -> None:
        self._found = found

    def compile(
        self,
        source: bytes,
        name: str,
        headers: Mapping[str, bytes],
        options: Sequence[str],
        *,
        ptx: bool,
        instances: Sequence[str] = (),
    ) -> Compiled:
        """Like :meth:`Compiler.compile`. A child that dies is a failed compile, with its last output as the log."""
        request = {
            "library": self._found.path,
            "builtins": self._found.builtins,
            "source": source.decode("latin-1"),
            "name": name,
            "headers": {spelled: text.decode("latin-1") for spelled, text in headers.items()},
            "options": list(options),
            "ptx": ptx,
            "instances": list(instances),
        }
        command = [sys.executable, "-I", "-S", "-c", _START, _PACKAGE, str(os.getpid())]
        try:
            done = subprocess.run(
                command, input=json.dumps(request).encode(), capture_output=True, check=False, start_new_session=True
            )
        except OSError as error:  # not enough memory or processes for a child
            return Compiled(b"", "", f"no process for NVRTC could be started: {error}")
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            return Compiled(b"", said, f"the process of NVRTC ended with {_how(done.returncode)}")
        return _read(done.stdout)


def answer(parent: int) -> None:
    """In the child: compile the request from the standard input."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG (prctl(2)): end with the parent
    if os.getppid() != parent:
        sys.exit("the process that asked is gone")
    out = os.dup(1)
    os.dup2(2, 1)  # NVRTC's own output goes to standard error
    asked = json.load(sys.stdin.buffer)
    headers = {spelled: text.encode("latin-1") for spelled, text in asked["headers"].items()}
    source, instances = asked["source"].encode("latin-1"), asked["instances"]
    compiler = Compiler(asked["library"], asked["builtins"])
    done = compiler.compile(source, asked["name"], headers, asked["options"], ptx=asked["ptx"], instances=instances)
    facts = {"log": done.log, "error": done.error, "symbols": dict(done.symbols), "image": len(done.image)}
    head = json.dumps(facts).encode()
    with os.fdopen(out, "wb") as stream:
        stream.write(_LENGTH.pack(len(head)) + head + done.image + done.ptx)
    os._exit(0)  # skips the teardown of NVRTC


def _read(data: bytes) -> Compiled:
    (length,) = _LENGTH.unpack_from(data)
    body = _LENGTH.size + length
    facts = json.loads(data[_LENGTH.size : body])
    image = data[body : body + facts["image"]]
    return Compiled(image, facts["log"], facts["error"], data[body + len(image) :], facts["symbols"])


def _how(status: int) -> str:
    return f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"status {status}"
