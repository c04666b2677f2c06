"""The guide's change to a package that is there, and its next step, executed: applied to one from PyPI, which works."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from precast.build import audit
from tests.examples.test_author_guide import GUIDE, commands, execute
from tests.kit import spawn
from tests.kit.spawn import CHECKOUT

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.wheel, pytest.mark.long]

PORTED = "torch_spline_conv==1.2.2"

# A spline of degree 1 is linear between its two knots; a convolution is a product for each of them.
USED = """
import torch, torch_spline_conv as ported
assert ported.__file__.startswith(SITE)
pseudo = torch.tensor([[0.0], [0.1], [0.5], [0.93], [1.0]], dtype=torch.float64)
size, is_open = torch.tensor([5]), torch.tensor([1], dtype=torch.uint8)
basis, index = ported.spline_basis(pseudo, size, is_open, 1)
place = (pseudo[:, 0] * 4)
low = place.floor().long() % 5
assert torch.allclose(basis, torch.stack([1 - place.frac(), place.frac()], 1)), basis
assert torch.equal(index, torch.stack([low, (low + 1) % 5], 1)), index
torch.manual_seed(0)
x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
weight = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
out = ported.spline_weighting(x, weight, basis, index)
expected = sum(basis[:, [k]] * torch.einsum("ei,eio->eo", x, weight[index[:, k]]) for k in range(2))
assert torch.allclose(out, expected)
assert torch.autograd.gradcheck(lambda x, w: ported.spline_weighting(x, w, basis, index), (x, weight))
print("works")
"""

DAMAGED = """
try:
    import torch_spline_conv
except ImportError as error:
    print(error)
"""


def changed_lines(guide: str) -> str:
    """The change that the guide shows."""
    (block,) = re.findall(r"^```diff\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    return str(block)


def run(site: Path, code: str) -> str:
    path = f"import sys; SITE = {str(site)!r}; sys.path[:0] = [SITE, {str(CHECKOUT / 'pkg')!r}]\n"
    return spawn.python("-W", "ignore", "-c", path + code, cwd=site).stdout


def test_the_guide_ports_a_package_from_pypi(tmp_path: Path) -> None:
    fetch = ("-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
    spawn.python(*fetch, "-d", tmp_path, PORTED)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    root = archive.with_suffix("").with_suffix("")
    guide = GUIDE.read_text(encoding="utf-8")
    change = changed_lines(guide)
    spawn.run("git", "apply", "--unidiff-zero", "-", cwd=root, stdin=change)

    (step,) = (text for text in commands(guide) if "--audit" in text)
    env = spawn.environ("PRECAST_LABEL", PYTHONPATH=CHECKOUT / "pkg", MAX_JOBS=2)
    assert "passed" in execute(step, Path(sys.executable), root, env)[0]
    (wheel,) = (root / "dist").glob("*.whl")
    violations, (info,) = audit.audit(wheel)
    assert violations == []
    assert {file.families[0] for file in info.host} == {"_version_cpu", "_basis_cpu", "_weighting_cpu"}

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as unpacked:
        unpacked.extractall(site)
    assert run(site, USED) == "works\n"
    library = site / "torch_spline_conv" / "_C" / "host" / "_basis_cpu.so"
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    assert run(site, DAMAGED).startswith("torch_spline_conv._basis_cpu is damaged")
