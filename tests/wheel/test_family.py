"""A kernel family is two folders: a made-up one, by new files alone, is wherever families are."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import Install, Run

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.torch, pytest.mark.long]

FILES = {
    "csrc/halve/family.toml": """
[[public]]
families = ["halve"]
ops = ["halve", "quarter"]

[autocast]
ours = "dtype of `x`"
torch = "dtype of the input"

[family.halve]
device = "halve/device.cu"
host = ["halve/host.cpp"]
cpu = ["halve/cpu.cpp"]
devices = ["cpu", "cuda"]
ops = ["halve(Tensor x) -> Tensor"]
""",
    "csrc/halve/args.h": """
#pragma once

namespace precast {
namespace halve {

struct HalveArgs {
  const float* x;
  float* y;
  long long count;
};

}  // namespace halve
}  // namespace precast
""",
    "csrc/halve/entries.h": """
#pragma once

#define HALVE_KERNELS(KERNEL) KERNEL(halve_f32, HalveArgs, 256, 2048, 32, 0, halve_all)
""",
    "csrc/halve/device.cu": """
#include "../gpu/device.cuh"
#include "args.h"
#include "entries.h"

namespace precast {
namespace halve {

DEVICE void halve_all(const HalveArgs& a) {
  const i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < a.count) a.y[i] = a.x[i] / 2;
}

HALVE_KERNELS(KERNEL)

}  // namespace halve
}  // namespace precast
""",
    "csrc/halve/cpu.h": """
#pragma once

#include "../cpu/cpu_level.h"

namespace precast {
namespace halve {

#define PRECAST_HALVE_CPU_LEVEL(level)                          \\
  namespace level {                                             \\
  void halve_all(const float* from, float* to, long long count); \\
  }

PRECAST_EACH_CPU_LEVEL(PRECAST_HALVE_CPU_LEVEL)

}  // namespace halve
}  // namespace precast
""",
    "csrc/halve/cpu.cpp": """
#include "cpu.h"

namespace precast::halve::PRECAST_CPU_LEVEL {

void halve_all(const float* from, float* to, long long count) {
  for (long long i = 0; i < count; ++i) to[i] = from[i] / 2;
}

}  // namespace precast::halve::PRECAST_CPU_LEVEL
""",
    "csrc/halve/host.cpp": """
#include "../gpu/entry_points.h"
#include "args.h"
#include "cpu.h"
#include "entries.h"

namespace precast::halve {
namespace {

PRECAST_ENTRIES(HALVE_KERNELS)

KernelFamily kernels = {"halve", kEntries, entry::kCount};

void on_cpu(const Tensor& x, const Tensor& y) {
  const auto halve_all = PRECAST_AT_CPU_LEVEL(halve, halve_all);
  halve_all(static_cast<const float*>(x.data()), static_cast<float*>(y.mutable_data()), x.numel());
}

void on_gpu(const Tensor& x, const Tensor& y) {
  HalveArgs args = {static_cast<const float*>(x.data()), static_cast<float*>(y.mutable_data()), x.numel()};
  void* arguments[] = {&args};
  if (args.count == 0) return;
  launch(kernels, x.device_index(), entry::halve_f32, {static_cast<uint32_t>((args.count + 255) / 256), 1, 256},
         arguments);
}

template <void (*run)(const Tensor& x, const Tensor& y)>
Tensor halve_op(const Tensor& x) {
  PRECAST_CHECK(dtype_of(x.dtype_code()) == DType::kFloat32, "halve: x is %s; needed float32",
                dtype_name(x.dtype_code()));
  Tensor y = empty_contiguous_like(x);
  run(contiguous(x), y);
  return y;
}

constexpr Implementation kImplementations[] = {
    PRECAST_IMPLEMENTATION("halve", "CPU", halve_op<on_cpu>),
    PRECAST_IMPLEMENTATION("halve", "CUDA", halve_op<on_gpu>),
};
PRECAST_FAMILY(halve, kImplementations, &kernels);

}  // namespace
}  // namespace precast::halve
""",
    "pkg/precast/ops/halve/__init__.py": """
'''Halves of numbers.'''

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precast._dispatch import namespace
from precast._dispatch.formulas import on_rows, register
from precast.ops import _checks


def halve(x: Tensor) -> Tensor:
    '''``x / 2``. Differentiable.'''
    y: Tensor = HALVE(x)
    return y


def quarter(x: Tensor) -> Tensor:
    '''``x / 4``. Differentiable.'''
    return halve(halve(x))


class _Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], x: Tensor) -> Tensor:
        return compute(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, halve(grad)


with namespace.family("halve", __package__):
    HALVE = register(
        "halve",
        check=lambda x: _checks.rows("halve", x),
        result=lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
        gradient=_Halve.apply,
        sharding=on_rows(1, kept=0),
    )
""",
    "pkg/precast/ops/halve/reference.py": """
'''Halves in plain torch.'''

from torch import Tensor


def halve(x: Tensor) -> Tensor:
    '''Half of each number.'''
    return x / 2
""",
    "pkg/precast/ops/halve/examples.py": """
'''Example calls of halve.'''

from precast.ops._folders import Examples

EXAMPLES: Examples = {"halve": lambda some: (some(5, 33),)}
""",
}

USE = """
import json, torch
import precast, precast.ops

x = torch.randn(3, 5, requires_grad=True)
precast.ops.quarter(x).sum().backward()
devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
print(json.dumps({
    "names": "halve" in dir(precast.ops) and "quarter" in precast.ops.__all__,
    "right": all(torch.equal(precast.ops.halve(x.to(device)).cpu(), x / 2) for device in devices),
    "gradient": type(precast.ops.halve(x).grad_fn).__name__ == "_HalveBackward" and x.grad.eq(0.25).all().item(),
    "source": precast.load("halve").host.kind,
}))
"""


@pytest.fixture(scope="module")
def grown(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the two folders more."""
    folder = Path(shutil.copytree(tree, tmp_path_factory.mktemp("grown") / "tree", symlinks=True))
    for name, text in FILES.items():
        path = folder / name
        assert not path.exists(), "a new family changes no file"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.lstrip())
    return folder


@pytest.fixture(scope="module")
def wheel(grown: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel of that tree."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, grown)
    (made,) = out.glob("*.whl")
    return made


def test_it_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = json.loads(archive.read("precast/_builder/families.json"))
        stub = archive.read("precast/ops/__init__.pyi").decode()
    assert {f"precast/{name.removeprefix('pkg/precast/')}" for name in FILES if "toml" not in name} <= names
    assert not [name for name in names if name.endswith("family.toml")], "a wheel has them in one file"
    assert {"families": ["halve"], "ops": ["halve", "quarter"]} in [one for f in described for one in f["public"]]
    assert "import halve as halve" in stub


def test_it_is_in_the_package_and_the_command_line(wheel: Path, install: Install, run: Run) -> None:
    installed = install(wheel)
    said = json.loads(installed.python(USE))
    assert said == {"names": True, "right": True, "gradient": True, "source": "jit"}

    def command(*words: str) -> str:
        return run(sys.executable, "-m", "precast", *words, PYTHONPATH=installed.site).stdout

    listed = command("list").splitlines()
    assert ["precast.ops.quarter", "halve"] in [line.split() for line in listed]
    assert "halve on cpu: jit" in command("why", "quarter")
    assert "halve_cpu" in command("doctor", "--verbose"), "without a loader it has extensions of its own name"
    checks = json.loads(command("doctor", "--deep", "--json", "halve"))
    assert checks["ok"] and "halve" in json.dumps(checks)


def test_the_tables_of_the_docs_have_it(grown: Path, run: Run) -> None:
    words = (sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "--rootdir", grown)
    words = (*words, grown / "tests/ops/test_autocast.py", "-k", "test_the_table_has_every_op")
    path = {"PYTHONPATH": f"{grown / 'pkg'}:{grown}"}
    assert "--update-snapshots writes it" in run(*words, expect=1, **path).stdout
    run(*words, "--update-snapshots", **path)
    run(*words, **path)
    assert "| `halve`, `quarter` | dtype of `x` |" in (grown / "docs/reference/autocast.md").read_text()


CHECKERS = """
from precast.kernel_loader import CPUAdamLoader
from precast.ops import halve, quarter, rms_norm

class Mine(CPUAdamLoader): ...

reveal_type(halve)
reveal_type(rms_norm)
reveal_type(CPUAdamLoader().load)
"""


def test_type_checkers_know_its_types(wheel: Path, install: Install, run: Run, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(CHECKERS)
    site = install(wheel).site
    words = (
        "--strict",
        "--follow-imports=silent",
        "--python-executable",
        sys.executable,
        "--cache-dir",
        tmp_path / "cache",
        tmp_path / "use.py",
    )
    said = run(sys.executable, "-m", "mypy", *words, MYPYPATH=site).stdout
    assert 'Revealed type is "def (x: torch._tensor.Tensor) -> torch._tensor.Tensor"' in said
    assert "Literal['none']" in said, said


@pytest.mark.parametrize(
    "tests",
    [
        "tests/ops/test_graphs.py -k test_opcheck_of_an_example[halve]",
        "tests/load/test_deep.py -k halve",
        "tests/unit/test_arrows.py -k ops/halve",
        # Its device code keeps to its list of entry points, by every label's compiler.
        "tests/unit/csrc/test_device_compiles.py -k test_nvrtc[halve-cu130-sm_90]",
        "tests/unit/csrc/test_device_compiles.py -k test_an_entry_point_stands_in_one_list",
    ],
)
def test_the_tests_over_all_ops_have_it(grown: Path, run: Run, tests: str) -> None:
    path, _, chosen = tests.partition(" -k ")
    said = run(
        *(sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "--rootdir", grown),
        *(grown / path, "-k", chosen.replace("[", " and ").replace("]", "").replace("ops/halve", "halve")),
        PYTHONPATH=f"{grown / 'pkg'}:{grown}",
    ).stdout
    assert " passed" in said and "failed" not in said, said
