"""Turn an error that torch's build tools raise into one short text with the cause first."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType

from precast._abi.settings import Settings
from precast._load import probe
from precast.errors import block


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """The lines that compilers write in the meantime; they still go where they went before."""
    said: list[str] = []
    kept, (read, write) = [os.dup(1), os.dup(2)], os.pipe()

    def listen() -> None:
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                os.write(kept[0], line)
                said.append(line.decode("utf-8", "replace"))

    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(write, stream)
    os.close(write)
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield said
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, old in zip((1, 2), kept, strict=True):
            os.dup2(old, stream)
        thread.join(timeout=5)  # a server that a compiler cache has started may keep the pipe


def explain_uncaught() -> None:
    """Let an error of torch in setup.py, before any command runs, end with a short text instead of a traceback."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = explained(error)
        if text:
            print(f"error: {text}", file=sys.stderr)
        else:
            usual(kind, error, trace)

    sys.excepthook = hook


def explained(error: BaseException) -> str:
    """The text for an error of torch's CUDAExtension, or of a setup.py that finds no torch; empty for any other."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return block(
            "setup.py imports torch",
            found="no torch in the environment of the build, which pip makes anew unless it is told otherwise",
            needed="the torch that the package is for",
            fix="pip install torch && pip install --no-build-isolation .",
        )
    if not isinstance(error, OSError) or "CUDA_HOME" not in str(error):
        return ""
    torch = probe.probe_host(Settings(), gpus=False).torch
    if torch is None or torch.cuda is None:
        version = "no torch" if torch is None else f"torch {torch.version}, a CPU build"
        return block(
            "setup.py asks for CUDA",
            found=version,
            needed="a torch for CUDA, or no FORCE_CUDA",
            fix=["pip install torch --index-url https://download.pytorch.org/whl/cu130", "unset FORCE_CUDA"],
        )
    release, label = torch.version.release, f"cu{torch.cuda.major}{torch.cuda.minor}"
    return block(
        "setup.py asks for CUDA",
        found="no CUDA toolkit: no CUDA_HOME, no nvcc on PATH",
        needed=f"the toolkit of CUDA {torch.cuda}, as torch {torch.version} has",
        fix=[
            f"export CUDA_HOME=/usr/local/cuda-{torch.cuda}",
            f"python -m precast.build wheels --torch {release} --cuda {label}  # takes nvcc from the package index",
        ],
    )
