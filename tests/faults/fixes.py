"""States that print a fix, and machines on which the fix is run as it was printed, by a shell.

A machine is a virtual environment with a copy of precast that pip installed. It sees this environment's torch, ninja
and pip, and nothing else. docs/reference/fixes.md has a row for each state.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from examples import downstream
from precast._version import __version__
from tests.faults.damage import flip
from tests.faults.lab import STEP, Lab
from tests.kit import fakes
from tests.kit.wheels import make_wheel
from tests.load.conftest import CHECKOUT, STEERING
from tools.verbs import index

MANAGER = """#!/bin/sh
# Installs what the compiler's package is called on Debian.
case "$*" in
update) ;;
"install -y g++") printf '#!/bin/sh\\nexec /usr/bin/g++ "$@"\\n' > {folder}/g++ && chmod 755 {folder}/g++ ;;
*) echo "unknown: $*" >&2; exit 100 ;;
esac
"""
COMPILERS, NINJA = r"g\+\+|c\+\+|clang", "ninja"
# The decision for a made-up GPU: there is none to run the op on. The torch of the tests is a CPU build.
CUDA_STEP = """
import torch
torch.version.cuda = "13.0"
from precast._abi.decision import Refuse
from precast.core.reasons import Need
from precast._load import probe, verdict
from precast._load.choose import choose
choice = choose(Need("rms_norm", "cuda"), probe.read_settings(), {}, certain=False)
if isinstance(choice.decision, Refuse):
    raise verdict.refusal(choice)
print(type(choice.decision).__name__)
"""
REFUSE = """
import pathlib
from precast.errors import KernelError
try:
    exec(pathlib.Path({step!r}).read_text())
except (KernelError, ImportError) as error:
    print(f"{{type(error).__name__}}: {{error}}")
else:
    raise SystemExit("nothing was refused")
"""


class Shop:
    """The wheels and the index that machines install from, each made once."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.folder = lab, lab.folder / "shop"

    @functools.cached_property
    def index(self) -> str:
        """An index with a wheel for the CPU and one for each of two generations of GPUs."""
        house = self.folder / "house"
        for label in ("cpu", "cu121", "cu132"):
            self.wheel(label, into=house)
        arguments = [str(house), "--out", str(self.folder / "site"), "--version", __version__]
        assert index.main(arguments) == 0
        return (self.folder / "site").as_uri()

    @functools.cache  # noqa: B019 - one shop lives as long as its tests
    def wheel(self, label: str = "", *, index_url: str | None = None, into: Path | None = None, **changes: str) -> Path:
        """A wheel of this checkout: from source without a label, else with prebuilt files."""
        contents = dict(_package())
        if label:
            c_dir = self.folder / f"{label}-{index_url is None}-{'-'.join(changes.values())}"
            (library,) = self.lab.seed.glob("v1/cpu_adam/*/cpu_adam.so")
            number, nvrtc = (120, "13.2.1") if label == "cu132" else (90, "12.1.105")
            device = {} if label == "cpu" else {f"sm_{number}": fakes.cubin(number)}
            families = ("cpu_adam", "rms_norm")
            info = fakes.write_installation(c_dir, library, device, label=label, nvrtc=nvrtc, families=families)
            host = tuple(dataclasses.replace(file, **changes) for file in info.host)
            text = dataclasses.replace(info, index_url=index_url, host=host).to_json()
            (c_dir / "build_info.json").write_text(text)
            contents |= _files(c_dir, "precast/_C")
        local = f"+{label}" if label else ""
        folder = into or self.folder / "wheels" / f"{index_url is not None}-{'-'.join(changes.values())}"
        return make_wheel(folder, version=f"{__version__}{local}", files=contents)

    @functools.cached_property
    def lent(self) -> Path:
        """This environment's torch, ninja and pip."""
        return self._lent("torch", "ninja", "pip", "numpy")

    @functools.cached_property
    def no_ninja(self) -> Path:
        return self._lent("torch", "pip", "numpy")

    @functools.cached_property
    def no_torch(self) -> Path:
        return self._lent("ninja", "pip", "numpy")

    @functools.cached_property
    def torch_wheels(self) -> Path:
        """An index of one torch: this environment's, behind a wheel of its name."""
        folder, there = self.folder / "torch-wheels", self._lent("torch")
        release, path = version("torch").partition("+")[0], f"{there}\n".encode()
        make_wheel(folder, name="torch", version=release, tag="py3-none-any", files={"t.pth": path})
        for path in folder.glob("*.whl"):
            _without(path, "torch/__init__.py")
        return folder

    def _lent(self, *names: str) -> Path:
        folder = self.folder / f"lent-{'-'.join(names)}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            downstream.lend(folder, names)
            for path in (*folder.glob("triton*"), *folder.glob("nvidia*")):
                path.unlink()
        return folder


class Machine:
    """A virtual environment, a home and a cache with all objects of one build. A state changes it."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self.shop, self.folder, self.lab = shop, folder, shop.lab
        self.home, self.venv, self.cache = folder / "home", folder / "venv", folder / "cache"
        self.step, self.tools, self.env = STEP, folder / "tools", dict[str, str]()
        self.home.mkdir(parents=True)
        kept_out = shutil.ignore_patterns(".*", "cpu_adam")
        shutil.copytree(self.lab.seed, self.cache, ignore=kept_out)
        self.cache.chmod(0o700)
        downstream.clean_python(self.venv, shop.lent)

    @property
    def site(self) -> Path:
        (site,) = self.venv.glob("lib/python3*/site-packages")
        return site

    @property
    def c_dir(self) -> Path:
        return self.site / "precast" / "_C"

    def lend(self, folder: Path) -> None:
        (self.site / "lent.pth").write_text(f"{folder}\n")

    def install(self, wheel: Path, *, recorded: bool = True) -> None:
        """As a user does; unless ``recorded``, nothing says where it came from, as after an installation by name."""
        done = self.shell(f"python -m pip install -q --no-deps --no-index --no-compile {wheel}")
        assert done.returncode == 0, done.stderr
        if not recorded:
            (record,) = self.site.glob("precast-*.dist-info/direct_url.json")
            record.unlink()

    def hide(self, programs: str) -> None:
        """A PATH without these programs, and with a package manager that brings a compiler."""
        self.tools.mkdir()
        for place in ("/usr/bin", "/bin"):
            for program in Path(place).iterdir():
                if not re.search(rf"{programs}|apt-get", program.name) and not (self.tools / program.name).exists():
                    (self.tools / program.name).symlink_to(program)
        manager = self.tools / "apt-get"
        manager.write_text(MANAGER.format(folder=self.tools))
        manager.chmod(0o755)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """What a shell of this machine says to a script."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith((*STEERING, "VIRTUAL_ENV"))}
        programs = str(self.tools) if self.tools.is_dir() else "/usr/bin:/bin:/usr/sbin:/sbin"
        own = {
            "PATH": f"{self.venv / 'bin'}:{programs}",
            "HOME": str(self.home),
            "PRECAST_CACHE_DIR": str(self.cache),
            "MAX_JOBS": "2",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(
            command, env=kept | own | self.env, cwd=self.home, capture_output=True, text=True, timeout=900, check=False
        )

    def refusal(self, before: str) -> str:
        """The error that the op raises after some commands."""
        step, refuse = self.home / "step.py", self.home / "refuse.py"
        step.write_text(self.step)
        refuse.write_text(REFUSE.format(step=str(step)))
        done = self.shell(f"{before}\npython {refuse}")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def after(self, before: str, fix: str) -> str:
        """What the op prints once the fix was run where the error was seen."""
        done = self.shell(f"{before}\nexec 3>&1 1>&2\n{fix}\nexec 1>&3\npython {self.home / 'step.py'}")
        assert done.returncode == 0, f"{fix}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def plain(self, text: str) -> str:
        """The text with the names of a page in place of this machine's."""
        for place, name in (
            (self.shop.index, "https://host/precast"),
            (str(self.home), "~"),
            (str(self.cache), "/data/cache"),
            (str(self.site), "/env/site-packages"),
            (str(self.shop.folder / "wheels"), "/wheels"),
            (str(CHECKOUT), "/src/precast"),
        ):
            text = text.replace(place, name)
        text = re.sub(r"/wheels/[\w-]*/", "/wheels/", text).replace(__version__, "X").replace("sudo ", "")
        return text.replace(version("torch"), "2.13.0")


@dataclass(frozen=True)
class State:
    """``make`` puts a machine into it and returns the commands before the op; ``works`` is what a fix gives."""

    id: str
    what: str
    make: Callable[[Machine], str]
    works: str | None  # None: not to be run here, and `why_not` says why
    why_not: str
    long: bool
    network: bool


STATES: list[State] = []


def state(
    ident: str,
    what: str,
    works: str | None = "prebuilt",
    *,
    why_not: str = "",
    long: bool = True,
    network: bool = False,
) -> Callable[[Callable[[Machine], str]], Callable[[Machine], str]]:
    """Puts a function into the table."""

    def register(make: Callable[[Machine], str]) -> Callable[[Machine], str]:
        assert (works is None) == bool(why_not), ident
        STATES.append(State(ident, what, make, works, why_not, long, network))
        return make

    return register


def first_fix(said: str) -> str:
    """The first fix of an error."""
    found = re.search(r"^\s+fix\s+1\) (.*)$", said, re.MULTILINE)
    assert found is not None, said
    return found[1]


@state("no-compiler", "No C++ compiler, installed from source", "jit")
def no_compiler(machine: Machine) -> str:
    machine.hide(COMPILERS)
    machine.install(machine.shop.wheel())
    return ""


@state("no-ninja", "No ninja, installed from source", "jit", network=True)
def no_ninja(machine: Machine) -> str:
    machine.hide(NINJA)
    machine.lend(machine.shop.no_ninja)
    machine.install(machine.shop.wheel())
    return ""


@state("no-tools", "Neither a compiler nor ninja, installed from source", "jit", network=True)
def no_tools(machine: Machine) -> str:
    machine.hide(f"{COMPILERS}|{NINJA}")
    machine.lend(machine.shop.no_ninja)
    machine.install(machine.shop.wheel())
    return ""


@state("no-compiler-index", "No C++ compiler, installed from source, `PRECAST_INDEX_URL` is set", long=False)
def no_compiler_index(machine: Machine) -> str:
    no_compiler(machine)
    return f"export PRECAST_INDEX_URL={machine.shop.index}"


@state("no-compiler-named", "`CXX` names a compiler that is not there", "jit")
def no_compiler_named(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    return "export CXX=/opt/nowhere/g++"


@state("jit-off", "`PRECAST_JIT=none`")
def jit_off(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cpu"))
    return "export PRECAST_JIT=none"


@state("aot-index", "`PRECAST_JIT=aot`, nothing prebuilt, `PRECAST_INDEX_URL` is set")
def aot_index(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    return f"export PRECAST_JIT=aot PRECAST_INDEX_URL={machine.shop.index}"


@state("aot-nowhere", "`PRECAST_JIT=aot`, nothing prebuilt, no record of where precast came from", "jit")
def aot_nowhere(machine: Machine) -> str:
    machine.install(machine.shop.wheel(), recorded=False)
    return "export PRECAST_JIT=aot"


@state("aot-nowhere-no-tools", "The same, without a compiler", "jit")
def aot_nowhere_no_tools(machine: Machine) -> str:
    machine.hide(COMPILERS)
    return aot_nowhere(machine)


@state("aot-source", "`PRECAST_JIT=aot`, installed with `pip install /src/precast`", network=True)
def aot_source(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    (record,) = machine.site.glob("precast-*.dist-info/direct_url.json")
    record.write_text(f'{{"url": "{CHECKOUT.as_uri()}", "dir_info": {{}}}}')
    return "export PRECAST_JIT=aot"


@state("damaged-file", "A prebuilt library is corrupted, installed from a wheel file, `PRECAST_JIT=aot`", long=False)
def damaged_file(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cpu"))
    flip(machine.c_dir / "host" / "kernels-x86_64.so")
    return "export PRECAST_JIT=aot"


@state("damaged-index", "A prebuilt library is corrupted, installed from an index that the wheel records, no compiler")
def damaged_index(machine: Machine) -> str:
    machine.hide(COMPILERS)
    machine.install(machine.shop.wheel("cpu", index_url=machine.shop.index), recorded=False)
    flip(machine.c_dir / "host" / "kernels-x86_64.so")
    return ""


@state("damaged-manifest", "The list of prebuilt files is corrupted, installed from a wheel file")
def damaged_manifest(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cpu"))
    (machine.c_dir / "build_info.json").write_text("{}")
    return ""


@state("stale", "Prebuilt files built from other sources, `PRECAST_JIT=aot`, the index is recorded")
def stale(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cpu", index_url=machine.shop.index), recorded=False)
    with (machine.site / "precast" / "csrc" / "host" / "family.h").open("a") as header:
        header.write("// edited\n")
    return "export PRECAST_JIT=aot"


@state("no-sources", "The kernel sources are missing, installed from a wheel file", "jit")
def no_sources(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    shutil.rmtree(machine.site / "precast" / "csrc")
    return ""


@state("wrong-machine", "A wheel for another CPU architecture, `PRECAST_JIT=aot`, the index is recorded")
def wrong_machine(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cpu", index_url=machine.shop.index, machine="aarch64"), recorded=False)
    return "export PRECAST_JIT=aot"


def with_gpu(machine: Machine, capability: str) -> str:
    machine.step = CUDA_STEP
    return "\n".join(f"export {name}='{value}'" for name, value in machine.lab.gpus(capability).items())


@state("wrong-label", "A wheel whose label does not serve this GPU; the index is recorded", "UsePrebuilt")
def wrong_label(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cu121", index_url=machine.shop.index), recorded=False)
    return with_gpu(machine, "12.0") + "\nexport DRIVER=13020"


@state("no-nvrtc", "No NVRTC for a GPU that the wheel has no code for", "BuildJit", network=True)
def no_nvrtc(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cu121"), recorded=False)
    return with_gpu(machine, "7.5")


@state("hidden-gpu", "`CUDA_VISIBLE_DEVICES` hides every GPU", "UsePrebuilt")
def hidden_gpu(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cu121"))
    return with_gpu(machine, "9.0") + "\nexport CUDA_VISIBLE_DEVICES="


@state("no-driver", "No NVIDIA driver, with a CPU build of torch", None, why_not="a driver is no package")
def no_driver(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cu121"))
    machine.step = CUDA_STEP.replace('torch.version.cuda = "13.0"\n', "torch.version.cuda = None\n")
    return ""


@state("cpu-torch", "A GPU, with a CPU build of torch", None, why_not="a download of gigabytes")
def cpu_torch(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cu121"))
    before = with_gpu(machine, "9.0")
    machine.step = CUDA_STEP.replace('torch.version.cuda = "13.0"\n', "torch.version.cuda = None\n")
    return before


def with_torch(machine: Machine, release: str, text: str) -> str:
    """Another torch in the environment, and an index that has this environment's."""
    machine.lend(machine.shop.no_torch)
    machine.install(machine.shop.wheel("cpu"))
    files = {"torch/__init__.py": text.encode()}
    wheel = make_wheel(machine.folder / "torch", name="torch", version=release, tag="py3-none-any", files=files)
    assert machine.shell(f"python -m pip install -q --no-deps --no-index {wheel}").returncode == 0
    return f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={machine.shop.torch_wheels.as_uri()} PIP_CONSTRAINT="


OTHER_TORCH = """
__version__ = {version!r}
class version:
    git_version, cuda, hip = {git!r}, None, None
def compiled_with_cxx11_abi(): return True
"""


def _asks_the_loader(machine: Machine) -> None:
    """A made-up torch has no tensors; the loader refuses before it needs one."""
    machine.step = "from precast._load import verdict\nfrom precast._builder import catalogue\n"
    machine.step += "verdict.assert_served(catalogue.get('cpu_adam'), 'cpu')\n" + "print('served')\n"


@state("old-torch", "torch is too old", "served")
def old_torch(machine: Machine) -> str:
    _asks_the_loader(machine)
    return with_torch(machine, "2.3.0", OTHER_TORCH.format(version="2.3.0", git="a" * 40))


@state("pre-release", "torch is a pre-release of 2.9 of unknown origin", "served")
def pre_release(machine: Machine) -> str:
    _asks_the_loader(machine)
    return with_torch(machine, "2.9.0a0", OTHER_TORCH.format(version="2.9.0a0", git="Unknown"))


@state("broken-torch", "torch cannot be imported", "served")
def broken_torch(machine: Machine) -> str:
    _asks_the_loader(machine)
    return with_torch(machine, "2.13.0", "raise OSError('libtorch_cpu.so: cannot open shared object file')")


@state("no-torch", "torch is not installed", "served")
def no_torch(machine: Machine) -> str:
    _asks_the_loader(machine)
    machine.lend(machine.shop.no_torch)
    machine.install(machine.shop.wheel("cpu"))
    return f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={machine.shop.torch_wheels.as_uri()} PIP_CONSTRAINT="


@state("cache-file", "The cache cannot be written", "jit")
def cache_file(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    (machine.home / "file").touch()
    return f"export PRECAST_CACHE_DIR={machine.home / 'file' / 'cache'}"


@state("cache-full", "The disk of the cache is full", "jit")
def cache_full(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    shutil.rmtree(machine.cache)
    machine.cache.mkdir(mode=0o700)
    machine.env |= machine.lab.faulty(machine.cache, full=".o")
    return ""


@state("cache-open", "Other users can write into the cache", "jit")
def cache_open(machine: Machine) -> str:
    machine.install(machine.shop.wheel())
    machine.cache.chmod(0o777)
    return ""


@state("cpu-level", "`PRECAST_CPU_LEVEL` names a level that this machine lacks")
def cpu_level(machine: Machine) -> str:
    machine.install(machine.shop.wheel("cpu"))
    return "export PRECAST_CPU_LEVEL=avx9000"


@state(
    "pure-import", "`from precast._C import cpu_adam_x86`, installed from source, `PRECAST_INDEX_URL` is set", "here"
)
def pure_import(machine: Machine) -> str:
    machine.step = "from precast._C import cpu_adam_x86\nprint('here')\n"
    machine.install(machine.shop.wheel())
    return f"export PRECAST_INDEX_URL={machine.shop.index}"


@functools.cache
def _package() -> Mapping[str, bytes]:
    sources = _files(CHECKOUT / "csrc", "precast/csrc")
    return _files(CHECKOUT / "pkg" / "precast", "precast") | sources


def _files(folder: Path, name: str) -> dict[str, bytes]:
    """The files below a folder, but what Python and builds leave there."""
    left = re.compile(r"(^|/)(__pycache__|torch_stable|_C/(host|device|build_info\\.json))(/|$)")
    paths = [path for path in folder.rglob("*") if path.is_file()]
    named = {f"{name}/{path.relative_to(folder)}": path for path in sorted(paths)}
    of_checkout = folder.is_relative_to(CHECKOUT)
    return {key: path.read_bytes() for key, path in named.items() if not (of_checkout and left.search(key))}


def _without(wheel: Path, member: str) -> None:
    """The wheel without one file that its maker adds."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != member}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in kept.items():
            lines = [line for line in data.decode().splitlines() if not line.startswith(member)]
            archive.writestr(name, "\n".join(lines) + "\n" if name.endswith("RECORD") else data)
