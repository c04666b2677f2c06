"""Whether this processor and these GPUs run the code inside of a library: machine code of nvcc, vector instructions.

A library is opened for a whole process. So one GPU that it serves is enough, and without a visible GPU its device code
is no reason against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .capability import TargetKind
from .host import Gpu, Host
from .manifest import HostFile
from .reasons import Reason


def unmet(file: HostFile, host: Host) -> Iterator[tuple[Reason, str, str]]:
    """What the code of a library needs and this host does not have: reason, wanted, found."""
    if file.code and host.gpus and not any(_runs(file, gpu, host) for gpu in host.gpus):
        of_driver = [code.min_driver for code in file.code if any(code.runs_on(g.capability, None) for g in host.gpus)]
        if of_driver:
            yield Reason.DRIVER, f"a driver for CUDA {min(of_driver)} or newer", f"a driver for CUDA {host.driver}"
        else:
            found = ", ".join(f"compute capability {gpu.capability} ({gpu.name})" for gpu in host.gpus)
            yield Reason.ARCH, f"a GPU for {', '.join(str(code.target) for code in file.code)}", found
    if host.cpu_features is not None and not host.cpu_features.issuperset(file.cpu):
        lacks = sorted(set(file.cpu) - host.cpu_features)
        yield Reason.CPU_LEVEL, f"a processor with {', '.join(file.cpu)}", f"one without {', '.join(lacks)}"


def served(file: HostFile, host: Host) -> tuple[int, int]:
    """How many GPUs a library serves, and how many of them with machine code; more is better."""
    sass = [code for code in file.code if code.target.kind is TargetKind.SASS]
    machine = sum(any(code.runs_on(gpu.capability, host.driver) for code in sass) for gpu in host.gpus)
    return sum(_runs(file, gpu, host) for gpu in host.gpus), machine


def _runs(file: HostFile, gpu: Gpu, host: Host) -> bool:
    return any(code.runs_on(gpu.capability, host.driver) for code in file.code)
