"""Machines that lack something, or are not the ones that the files were made for."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tests.faults.lab import BUILD, LOAD, STEP, Lab, NotRun, fault, line
from tests.kit import fakes, spawn
from tests.load.conftest import Site

CUDA = "import torch; torch.version.cuda = '13.0'\n"  # the torch of the tests is a CPU build
LOAD_CUDA = CUDA + "import precast; precast.load('rms_norm', 'cuda')"
NEWER = "2.15.0"


def without(site: Site, *modules: str) -> dict[str, str]:
    """What makes a Python of this installation that cannot import some modules."""
    hidden = dict.fromkeys(modules)
    (site.home / "sitecustomize.py").write_text(f"import sys; sys.modules.update({hidden})\n")
    return {"PYTHONPATH": f"{site.folder}:{site.home}"}


@fault("no-compiler", "no compiler, nothing prebuilt", how="an empty PATH", lost="the op")
def no_compiler(lab: Lab) -> str:
    said = lab.site().refusal(LOAD, env={"PATH": "/nonexistent"})
    assert said.startswith("KernelUnavailable: ") and "install -y g++" in said
    return line(said, "no-compiler")


@fault("no-compiler-wheel", "no compiler, a wheel", how="an empty PATH; the prebuilt library fits")
def no_compiler_wheel(lab: Lab) -> str:
    done = lab.wheel().run(STEP, env={"PATH": "/nonexistent"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "prebuilt\n", "")
    return "nothing: the prebuilt library is used"


@fault(
    "no-nvrtc",
    "no NVRTC for a GPU the wheel has no code for",
    how="a made-up sm_75, code for sm_90",
    lost="the kernel",
)
def no_nvrtc(lab: Lab) -> str:
    done = lab.wheel({"sm_90": fakes.cubin(90)}).run(LOAD_CUDA, env=lab.gpus("7.5"))
    assert done.returncode == 0, done.stderr
    return line(done.stderr, "plain torch stands in")


@fault("no-lzma", "a Python without lzma", how="no _lzma, code for sm_90, PRECAST_JIT=aot", lost="the op")
def no_lzma(lab: Lab) -> str:
    site = lab.wheel({"sm_90": fakes.cubin(90)})
    said = site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | without(site, "_lzma") | {"PRECAST_JIT": "aot"})
    assert "liblzma-dev" in said and "no-nvrtc" in said
    return line(said, "no-lzma", "sm_90")


@fault("wrong-arch", "code for another GPU", how="a made-up sm_75, code for sm_90, PRECAST_JIT=aot", lost="the op")
def wrong_arch(lab: Lab) -> str:
    site = lab.wheel({"sm_90": fakes.cubin(90)})
    said = site.refusal(LOAD_CUDA, env=lab.gpus("7.5") | {"PRECAST_JIT": "aot"})
    assert "sm_75" in said or "7.5" in said
    return line(said, "arch", "sm_90")


@fault("unlike-gpus", "two GPUs of different kinds", how="made-up 9.0 and 7.5, code for sm_90", lost="the op on one")
def unlike_gpus(lab: Lab) -> str:
    code = """
        from precast.core.reasons import Need
        from precast._load import probe, verdict
        from precast._load.choose import choose
        choice = choose(Need("rms_norm", "cuda"), probe.read_settings(), {}, certain=False)
        ((index, image),) = choice.decision.images
        assert (index, image.path) == (0, "device/rms_norm.sm_90.cubin.xz")
        ((index, why),) = choice.decision.refused
        print(verdict.gpu_refusal(choice, index, why))
    """
    site = lab.wheel({"sm_90": fakes.cubin(90)})
    env = lab.gpus("9.0", "7.5") | {"PRECAST_JIT": "aot", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    said = site.ok(CUDA + "".join(row.removeprefix("        ") + "\n" for row in code.splitlines()), env=env)
    return line(said, "cannot run on cuda:1")


def other_torch(site: Site, version: str) -> dict[str, str]:
    """The environment in which torch is the one of the tests, under another version."""
    folder = site.home / "torch"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch.version':\n"
        "            import importlib.machinery, importlib.util\n"
        "            sys.meta_path.remove(self)\n"
        "            spec = importlib.machinery.PathFinder.find_spec(name, path)\n"
        "            run = spec.loader.exec_module\n"
        "            def execute(module):\n"
        "                run(module)\n"
        f"                module.__version__ = {version!r}\n"
        "            spec.loader.exec_module = execute\n"
        "            return spec\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return {"PYTHONPATH": f"{folder}:{site.folder}"}


@fault("torch-2.3", "torch swapped for 2.3 under a wheel", how="torch says that it is 2.3.1", lost="the op")
def torch_too_old(lab: Lab) -> str:
    site = lab.wheel()
    said = site.refusal(LOAD, env=other_torch(site, "2.3.1") | {"PRECAST_JIT": "aot"})
    return line(said, "classic-jit", "2.3.1")


@fault("torch-nightly", "torch swapped for a 2.10 that is no release", how="torch says 2.10.0a0+nv")
def torch_before_release(lab: Lab) -> str:
    site = lab.wheel()
    done = site.run(STEP, env=other_torch(site, "2.10.0a0+1234567.nv25.12") | {"PRECAST_JIT": "aot"})
    assert (done.returncode, done.stdout) == (0, "prebuilt\n"), done.stderr
    return "nothing: a toy op shows that its functions do what the release's do"


@fault("torch-newer", "torch swapped for 2.15 under a wheel", how="torch says that it is 2.15.0")
def torch_newer(lab: Lab) -> str:
    site = lab.wheel()
    done = site.run(LOAD, env=other_torch(site, NEWER) | {"PATH": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, "prebuilt\n"), done.stderr
    return "nothing: the prebuilt library is used"


@fault("torch-2.15", "torch 2.13 swapped for 2.15 under a wheel", how=f"torch {NEWER} from the index", slow=True)
def torch_newer_for_real(lab: Lab) -> str:
    folder = lab.folder / "newer"
    spawn.python("-m", "venv", folder)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--prefer-binary", f"torch=={NEWER}", "numpy"]
    done = spawn.run(*pip, status=None, timeout=600)
    if done.returncode:
        raise NotRun(f"torch {NEWER} cannot be installed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    site = lab.wheel()
    code = f"import torch; assert torch.__version__.startswith({NEWER!r})\n" + STEP
    env = {"PYTHONPATH": str(site.folder), "HOME": str(site.home), "PATH": "/nonexistent"}
    assert spawn.run(folder / "bin" / "python", "-c", code, env=env, cwd=site.home).stdout == "prebuilt\n"
    return "nothing: the prebuilt library is used"


@fault(
    "cpu-level",
    "a cache shared by unlike processors",
    how="/proc/cpuinfo without AVX",
    lost="one build",
)
def cpu_level(lab: Lab) -> str:
    site = lab.site(warm="all")
    masked = site.home / "cpuinfo"
    text = Path("/proc/cpuinfo").read_text()
    masked.write_text(re.sub(r"^flags\s*:.*$", "flags\t\t: fpu sse sse2", text, flags=re.MULTILINE))
    before = {path.parent.name for path in site.cache.glob("v1/cpu_adam/*/cpu_adam.so")}
    if not re.search(r"\bavx2\b", text):
        raise NotRun("this processor has nothing that could be masked")
    done = site.run(BUILD, env=lab.faulty(site.cache, cpuinfo=str(masked)))
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    after = {path.parent.name for path in site.cache.glob("v1/cpu_adam/*/cpu_adam.so")}
    assert len(before) == 1 and len(after) == 2, "the AVX build was taken, or replaced"
    return line(done.stderr, "built the host library")


# As for a wheel: a build at run time makes the one level of this processor.
ALL_LEVELS = """
import platform
from precast._builder import flags
from precast._load import jit
jit.levels_to_build = lambda settings: flags.cpu_levels(platform.machine())
"""


@fault("cpu-qemu", "a wheel on a processor without AVX", how="qemu-user as a Nehalem", slow=True)
def cpu_qemu(lab: Lab) -> str:
    qemu = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if qemu is None:
        raise NotRun("there is no qemu-x86_64")
    full = lab.site(warm="nothing")
    full.ok(ALL_LEVELS + BUILD)
    site = lab.wheel(library=full)
    env = spawn.environ(PYTHONPATH=site.folder, HOME=site.home, OMP_NUM_THREADS=1)
    done = spawn.run(qemu, "-cpu", "Nehalem", sys.executable, "-c", STEP, env=env, cwd=site.home, timeout=580)
    assert done.stdout == "prebuilt\n", done.stderr
    return "nothing: the baseline kernels run"
