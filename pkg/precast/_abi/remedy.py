"""The command that mends a rejection, chosen from what the host is. An empty string where no command would help."""

from __future__ import annotations

from precast._abi.build_info import BuildInfo, BuildMode
from precast._abi.capability import ComputeCapability
from precast._abi.host import Host
from precast._abi.label import Label, label_for, sass_floor
from precast._abi.torch_abi import STABLE_FLOOR
from precast._abi.version import CudaVersion
from precast._version import __version__

INSTALL_TORCH = f'pip install "torch>={STABLE_FLOOR}"'
INSTALL_COMPILER = "apt-get install g++  # or: conda install -c conda-forge gxx"
INSTALL_NINJA = "pip install ninja"
INSTALL_TRITON = "pip install triton"
ALLOW_JIT = "export PRECAST_JIT=auto"
BUILD_HERE = "CUDA_EXT=1 pip install --no-cache-dir ."
BUILD_AGAIN = "CUDA_EXT=1 python -m pip install --no-cache-dir --force-reinstall --no-deps precast"


def install_label(label: Label, build_info: BuildInfo | None) -> str:
    """Installs this version under another label."""
    version = __version__ if build_info is None else build_info.version
    return f'pip install "precast=={version}{label.local}"'


def other_label(gpu: ComputeCapability, driver: CudaVersion | None, build_info: BuildInfo | None) -> str:
    """The label that serves this GPU, if that is another one than what is installed."""
    label = label_for(gpu, driver)
    if label is None or (build_info is not None and build_info.label == label):
        return ""
    return install_label(label, build_info)


def prebuilt_wheel(host: Host, build_info: BuildInfo) -> str:
    """The wheel with prebuilt files for the first GPU, or for the CPU where there is none."""
    label = label_for(host.gpus[0].capability, host.driver) if host.gpus else Label("cpu")
    return install_label(label, build_info) if label is not None else ""


def reinstall(build_info: BuildInfo) -> str:
    """Puts back the files of what is installed; what was built from source is built again."""
    if build_info.mode is BuildMode.RELEASE:
        return f'pip install --force-reinstall --no-deps "precast=={build_info.version}{build_info.label.local}"'
    return f'CUDA_EXT=1 pip install --force-reinstall --no-deps --no-cache-dir "precast=={build_info.version}"'


def build_from(checkout: str) -> str:
    """Installs a checkout, quoted for the shell, with its prebuilt files."""
    return f"CUDA_EXT=1 python -m pip install --no-cache-dir --force-reinstall --no-deps {checkout}"


def python_with_lzma(host: Host) -> str:
    """A Python is without lzma when liblzma's headers were not there as it was compiled: pyenv's, as a rule."""
    return f"apt-get install liblzma-dev && pyenv install --force {host.python}  # or: uv python install {host.python}"


def install_nvrtc(cuda: CudaVersion | None, driver: CudaVersion | None) -> str:
    """The NVRTC package of torch's CUDA, else of the driver's."""
    version = cuda or driver
    if version is not None and version.major < 13:
        return "pip install nvidia-cuda-nvrtc-cu12"
    return 'pip install "nvidia-cuda-nvrtc==13.*"'


def install_cuda_torch(driver: CudaVersion | None) -> str:
    """A torch with CUDA; its own index is the one place that has builds for every CUDA."""
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{_torch_label(driver)}"


def _torch_label(driver: CudaVersion | None) -> str:
    return "cu126" if driver is not None and driver.major < 13 else "cu130"


def served_range(gpu: ComputeCapability, label: Label) -> str:
    """In words, what a GPU older than a label's floor would need."""
    cuda = label.cuda
    if cuda is not None and gpu < sass_floor(cuda):
        return f"; {label} serves {sass_floor(cuda)} and newer, labels below CUDA {cuda.major} serve this GPU"
    return ""
