"""What an import does to the world: it reads files, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.load.conftest import Site

# Every event that changes or starts something; https://docs.python.org/3/library/audit_events.html
TRACE = """
import json, os, sys
found = []
WATCHED = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.mkdir", "os.rename",
           "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate", "os.putenv", "shutil.",
           "tempfile.", "socket.", "ctypes.dlopen", "_thread.start_new_thread")
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(WATCHED):
        found.append(f"{event} {args[0] if args else ''}")
BEFORE
sys.addaudithook(hook)
IMPORT
print(json.dumps([list(found), "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()]))
"""


def trace(site: Site, what: str, before: str = "") -> list[str]:
    """The events of an import; it must not have initialised CUDA."""
    done = site.run(TRACE.replace("BEFORE", before).replace("IMPORT", what), options=("-B",))
    assert done.returncode == 0, done.stderr
    events, cuda = json.loads(done.stdout)
    assert cuda is False
    return events


def test_the_import_makes_no_context_process_folder_or_file(bare: Site) -> None:
    assert trace(bare, "import precast") == []
    assert list(bare.home.iterdir()) == [] and not bare.cache.exists()


@pytest.mark.torch
def test_the_import_of_the_ops_makes_none_either(bare: Site) -> None:
    assert trace(bare, "import precast.ops, precast.optim, precast.nn, precast.kernel_loader", "import torch") == []
    assert list(bare.home.iterdir()) == [] and not bare.cache.exists()


@pytest.mark.parametrize(
    ("what", "event"),
    [
        ("import os; os.mkdir('folder')", "os.mkdir folder"),
        ("open('file', 'w').close()", "open file"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen true"),
        ("import ctypes; ctypes.CDLL('libm.so.6')", "ctypes.dlopen libm.so.6"),
    ],
)
def test_the_trace_sees_what_it_should(bare: Site, what: str, event: str) -> None:
    assert event in trace(bare, what)


@pytest.mark.strace
def test_the_kernel_sees_no_more_than_python_does(bare: Site, tmp_path: Path) -> None:
    """The calls of C code as well, against those of a Python that imports nothing."""
    strace, log = shutil.which("strace"), tmp_path / "trace"
    code = f"""
        import os, subprocess, sys
        for name in ("pass", "import precast"):
            calls = "trace=mkdir,mkdirat,execve,fork,vfork,unlink,rename"
            command = [{strace!r}, "-f", "-o", {str(log)!r}, "-e", calls, sys.executable, "-B", "-c", name]
            subprocess.run(command, check=True)
            print(sum("ENOENT" not in line and "+++" not in line for line in open({str(log)!r})))
    """
    plain, ours = bare.ok(code).split()
    assert plain == ours == "1", "the one call is the execve of Python itself"
