"""Known bad builds: compilers whose machine code for some GPU goes wrong, with the page that says so.

A row names the versions and the GPU that its page names, and no more. It refuses where the library that goes wrong is
known. Where only some kernels do, and nothing says which, it warns. A compiler that is not known is in no row: nvcc 12
leaves no trace of its version, so of CUDA 12 only the code of NVRTC is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .capability import CompiledCode, ComputeCapability, TargetKind
from .reasons import Reason, Rejection
from .value import value
from .version import dotted


@value(frozen=True)
class KnownBad:
    """Versions from ``first`` to before ``fixed``. ``families`` are the libraries that a row is about, () for all."""

    compilers: tuple[str, ...]
    first: str
    fixed: str
    gpu: ComputeCapability
    symptom: str
    source: str
    families: tuple[str, ...] = ()
    refuses: bool = False

    def against(self, code: CompiledCode) -> Rejection:
        """What is wrong with code that the row covers, and the compilers that are not known to do it."""
        needed = f"code by {' or '.join(self.compilers)} {self.fixed} or newer, or older than {self.first}"
        found = f"{code.target} by {code.compiler} {code.version}: {self.symptom}: {self.source}"
        return Rejection(Reason.KNOWN_BAD, needed, found)

    def covers(self, code: CompiledCode, families: Iterable[str]) -> bool:
        """Whether the row is about this code of a library with these families."""
        return (
            code.compiler in self.compilers
            and (code.target.kind, code.target.capability) == (TargetKind.SASS, self.gpu)
            and dotted(self.first) <= dotted(code.version) < dotted(self.fixed)
            and (not self.families or not set(self.families).isdisjoint(families))
        )


TABLE = (
    KnownBad(
        ("nvcc",), "13.0", "13.3", ComputeCapability(10, 3),
        "causal_conv1d_fwd and causal_conv1d_update give wrong numbers without an error",
        "https://github.com/Dao-AILab/causal-conv1d/issues/105",
        families=("causal_conv1d_cuda",), refuses=True,
    ),
    KnownBad(
        ("nvcc",), "13.0", "13.1", ComputeCapability(12, 0),
        "a GEMM with CuTe may corrupt data without an error",
        "https://docs.nvidia.com/cuda/archive/13.1.1/cuda-toolkit-release-notes/index.html",
    ),
    KnownBad(
        ("nvcc",), "13.2", "13.3", ComputeCapability(12, 0),
        "cooperative_groups::thread_block::sync() may give wrong results",
        "https://github.com/NVIDIA/cccl/issues/8534",
    ),
    KnownBad(
        ("nvcc",), "13.2", "13.3", ComputeCapability(12, 0),
        "single bytes of a packed 32-bit word may be read wrong",
        "https://github.com/ggml-org/llama.cpp/pull/28784",
    ),
    KnownBad(
        ("nvcc", "nvrtc"), "12.0", "12.6.85", ComputeCapability(9, 0),
        "numbers may be clamped wrong",
        "https://github.com/openxla/xla/pull/19927",
    ),
)  # fmt: skip


def among(codes: Iterable[CompiledCode], families: Iterable[str]) -> Iterator[tuple[CompiledCode, KnownBad]]:
    """The code of a library that the table knows as bad, each with its row."""
    for code in codes:
        yield from ((code, row) for row in TABLE if row.covers(code, families))
