"""Judge what ``xray`` read: whether it works on one machine.

A library is judged by the same :func:`precast.core.choose.library` that chooses ours, and device code behind a
manifest by the same :func:`precast._abi.decide.choose_image`.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import replace

from precast._abi.decide import Case, choose_image
from precast._abi.settings import JitMode, Settings
from precast._builder import alternatives, dlopen, torch_names, xray_torch
from precast._builder.verdicts import ORDER, YES, Machine, Verdict, against, worst
from precast._builder.xray import Contents, Library
from precast.core import choose
from precast.core.host import Gpu, Host, TorchInfo
from precast.core.manifest import BuildInfo, BuildMode, HostFile, HostKind
from precast.core.reasons import JIT_CANDIDATE, Need, Reason, Rejection
from precast.core.torch_abi import Exact, Stable
from precast.core.version import CudaVersion, Label, Release, TorchVersion

# Libraries of torch, CUDA and OpenMP. A copy in the wheel would be loaded as a second one in the same process.
_CUDA = (
    r"(?:cuda|cudart|cudadevrt|cublas(?:Lt)?|cufft|cufftw|cufile|cufile_rdma|cupti|curand|cusolver|cusolverMg|cusparse"
    r"|cusparseLt|cudnn\w*|cudss\w*|cutensor\w*|nvrtc(?:-builtins)?|nvJitLink|nvjpeg\w*|nvToolsExt|nvtx\w*|nvcomp\w*"
    r"|nvblas|nvfatbin|nvptxcompiler|nvperf_\w+|nvshmem_\w+|nvidia-\w+|nvcuvid|npp\w+)"
)
FOREIGN = re.compile(
    r"lib((torch(_(cpu|cuda|cuda_linalg|hip|xpu|python|global_deps|nvshmem))?|c10(_cuda|_hip|_xpu)?|gomp|i?omp\d*)"
    rf"|{_CUDA}|nccl\w*|stdc\+\+|gcc_s|python[\d.]*)([.-][\w.+-]*)?\.so[\w.-]*"
)
# A copy of a CUDA library under a name of its own, as auditwheel gives it. It is as safe as one linked statically.
_OWN_COPY = re.compile(rf"lib{_CUDA}[.-][0-9a-f]{{8}}\.so[\w.-]*")
# What torch, CUDA's packages and the system provide (PEP 600's libraries, and Python's own).
PROVIDED = re.compile(
    FOREIGN.pattern + r"|lib(c|m|dl|rt|pthread|util|nsl|resolv|z|expat|X11|Xext|Xrender|ICE|SM|GL|shm|mkl\w*"
    r"|gobject-2\.0|gthread-2\.0|glib-2\.0)\.so[\w.-]*|ld-linux[\w.-]*"
)


def is_foreign(name: str) -> bool:
    """Whether a library in a wheel would be a second one of torch, CUDA or OpenMP in its process."""
    return FOREIGN.fullmatch(name) is not None and _OWN_COPY.fullmatch(name) is None


def host_file(library: Library, torch: Exact | None) -> HostFile | None:
    """The manifest entry of a library; None if its torch is needed for that and not known."""
    abi = library.abi(torch)
    if abi is None:
        return None
    info = library.info
    return HostFile(
        path=f"host/{library.path.rpartition('/')[2]}",
        sha256=hashlib.sha256(library.data).hexdigest(),
        bytes=len(library.data),
        abi=abi,
        machine=info.machine,
        needed=info.needed,
        glibc=Release(*(*info.glibc, 0, 0)[:2]),
        glibcxx=".".join(map(str, info.glibcxx or (3, 4))),
        cpu_levels=(),
        families=(library.module.rpartition(".")[2],),
        python="none" if library.python == "unknown" else library.python,
        cuda_major=library.bound.cudart,
        code=library.code,
        cpu=library.cpu.required,
        compiled=library.compiled,
    )


def judge(contents: Contents, library: Library, machine: Machine) -> Verdict:
    """Whether a library works on that machine, with the libraries of the wheel that it links."""
    seen, left = {library.path: _judge(contents, library, machine)}, [library]
    while left:
        there = _there(contents, left[-1])
        for name in left.pop().info.needed:
            if name in there and there[name].path not in seen:
                left.append(there[name])
                seen[left[-1].path] = _judge(contents, left[-1], machine)
            elif name not in there and not PROVIDED.fullmatch(name):
                seen[name] = against("unknown", "linked", name, "neither in the wheel nor among torch's libraries")
    own, *others = seen.items()
    linked = (Verdict(one.answer, tuple(why.at("", where) for why in one.why)) for where, one in others)
    return worst((own[1], *linked))


def _there(contents: Contents, library: Library) -> dict[str | None, Library]:
    """The libraries of a wheel by the names under which one finds them: those that its manifest lists, or all."""
    if library.listed is not None:
        folder = library.path.removesuffix(library.listed.path)
        by_path = {one.path: one for one in contents.libraries}
        return {soname: by_path[f"{folder}{path}"] for soname, path in library.listed.links if folder + path in by_path}
    return {name: one for one in contents.libraries for name in (one.path.rpartition("/")[2], one.info.soname)}


def _judge(contents: Contents, library: Library, machine: Machine) -> Verdict:
    own = (
        ()
        if library.listed is not None
        else (xray_torch.judge(contents, library, machine.torch) or YES, _runtime(library, machine))
    )
    return worst((*_loader(contents, library, machine), *own, _process(library, machine), _names(library, machine)))


def _names(library: Library, machine: Machine) -> Verdict:
    """Whether the Python that reads this has the library's names of Python, if it can speak for the machine's.

    A tag may promise an older Python than its library was compiled for. For another release only a doubt is left.
    """
    here, threads = Release(*sys.version_info[:2]), "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    mine = machine.python == here and library.python == f"cp{here.major}{here.minor}{threads}"
    if machine.python is None or not (mine or (library.python == "abi3" and not threads)):
        return YES
    names = library.info.anywhere & {*library.bound.names_of_python} - library.provided
    lacking = sorted(one for one in names if not one.startswith("THP") and not hasattr(ctypes.pythonapi, one))
    answer = "no" if machine.python == here else "unknown"
    found = f"Python {platform.python_version()}, which does not have it"
    return against(answer, Reason.PYTHON, lacking[0], found) if lacking else YES


def _runtime(library: Library, machine: Machine) -> Verdict:
    """A CUDA runtime for a library that does not need torch: it may have a path to another one than torch's."""
    wanted, torch = library.bound.cudart, machine.torch
    if wanted is None or library.needs_torch or torch is None or not torch.local:
        return YES
    found = _cuda(torch)
    if found is not None and found.major == wanted:
        return YES
    return against(
        "unknown", Reason.CUDA_RUNTIME, f"libcudart.so.{wanted}", f"torch {torch}, which brings another or none"
    )


def _cuda(torch: TorchVersion) -> CudaVersion | None:
    """The CUDA version in the local version of a torch."""
    found = re.search(r"cu(\d\d)(\d+)", torch.local or "")
    return CudaVersion(int(found[1]), int(found[2])) if found else None


def _loader(contents: Contents, library: Library, machine: Machine) -> Iterator[Verdict]:
    """What the dynamic loader says before it looks for a symbol, and what could not be read."""
    opening, there = library.opening, _there(contents, library)
    if opening.refused:
        yield against("no", "loader", "a library that the dynamic loader opens", opening.refused)
    if opening.unsure:
        yield against("unknown", "loader", "a library that the dynamic loader opens", opening.unsure)
    if library.error:
        yield against("unknown", "code", "code that can be read", library.error)
    if opening.executable_stack and (machine.glibc is None or machine.glibc >= dlopen.STRICT_STACK):
        answer = "unknown" if machine.glibc is None else "no"
        found = "another, or not known" if machine.glibc is None else f"glibc {machine.glibc}"
        yield against(answer, Reason.GLIBC, f"glibc older than {dlopen.STRICT_STACK}, for its executable stack", found)
    for file, version in library.info.versions:
        if file not in library.info.needed:
            yield against("unknown", "linked", f"version {version} of {file}", "no link to that")
        elif file in there:
            if there[file].info.offered and version not in there[file].info.offered:
                yield against("no", "linked", f"version {version} of {there[file].path}", "a library without it")
        elif PROVIDED.fullmatch(file) and not dlopen.known(file, version):
            yield against("unknown", "linked", f"version {version} of {file}", "one that is not known to have it")

    elsewhere = [file for file in library.info.needed if file not in there]
    for name in sorted(library.info.anywhere - library.provided - {*library.bound.classic, *library.bound.python}):
        if not torch_names.SHIM.fullmatch(name) and not any(dlopen.offers(file, name) for file in elsewhere):
            yield against("unknown", "linked", name, "nothing that it links is known to have it")
            break


def _process(library: Library, machine: Machine) -> Verdict:
    """What the decision of our own libraries says of this one."""
    torch = machine.torch or TorchVersion.parse("2.10.0")
    cxx11 = (
        library.cxx11 is not False
        if machine.torch is None
        else xray_torch.has_cxx11(machine.torch, library.info.machine)
    )
    file = library.listed or host_file(library, Exact(torch.release, cxx11))
    if file is not None and library.listed is None and not library.needs_torch:
        file = replace(file, cuda_major=None)  # _runtime() judges it
    if file is not None and (file.links or file.kind is HostKind.LINKED):  # each by itself; judge() follows the links
        file = replace(file, links=(), kind=HostKind.LIBRARY, families=file.families or ("linked",))
    if file is None:
        return against("no", Reason.TORCH_ABI, "functions of torch's stable interface", "no known torch that has them")
    if machine.torch is None and isinstance(file.abi, Stable):
        torch = TorchVersion.parse(f"{file.abi.floor}.0")
    elif machine.torch is None and isinstance(file.abi, Exact):
        torch, cxx11 = TorchVersion.parse(f"{file.abi.release}.0"), file.abi.cxx11
    asked = choose.Asked(_host(file, torch, cxx11, machine), _info(file), file.families[0], {})
    return _rejected(choose.library(asked).rejections)


def _rejected(rejections: Iterable[Rejection]) -> Verdict:
    why = tuple(one.at("", "") for one in rejections if one.candidate != JIT_CANDIDATE)
    return Verdict("no", why) if why else YES


def device(info: BuildInfo, family: str, machine: Machine) -> Verdict:
    """Whether the device code of a family in a manifest runs on the GPU, or with the driver, that a machine names."""
    images = [image for image in info.device if image.family == family]
    driver = machine.driver or max((image.min_driver for image in images), default=_ANY_DRIVER)
    if machine.gpu is None:
        oldest = min((image.min_driver for image in images), default=driver)
        return YES if oldest <= driver else against("no", Reason.DRIVER, f"CUDA {oldest} or newer", str(driver))
    gpu = Gpu(0, machine.gpu, "the GPU named")
    host = Host("Linux", "", Release(3, 12), None, None, None, driver=driver, gpus=(gpu,))
    pick = choose_image(Case(host, info, _AOT, Need(family, "cuda"), {}), gpu)
    return YES if pick.chosen is not None else _rejected(pick.rejections)


def overall(contents: Contents, machine: Machine) -> Verdict:
    """The answer for the whole file: the worst of all, where of libraries that stand for each other the best counts.

    Prebuilt device code counts if a GPU or a driver is named. A file that cannot be read makes the answer unknown.
    """
    groups = [(group, _best(contents, group, machine)) for group in alternatives.groups(contents)]
    parts = [verdict for _, verdict in groups]
    if machine.gpu is not None or machine.driver is not None:
        families = {(folder, image.family): info for folder, info in contents.manifests for image in info.device}
        parts += [device(info, family, machine) for (_, family), info in families.items()]
    parts += [
        against("unknown", "library", "one that can be read", f"{where}: {why}") for where, why in contents.unread
    ]
    chosen = tuple(path for group, verdict in groups if len(group.libraries) > 1 for path in verdict.by)
    whole = worst(parts)
    return replace(whole, by=chosen if whole.answer == "yes" else ())


def _best(contents: Contents, group: alternatives.Group, machine: Machine) -> Verdict:
    """Whether one of several libraries that stand for each other works, and which one."""
    found = [(one, judge(contents, one, machine)) for one in group.libraries]
    library, best = max(found, key=lambda pair: ORDER.index(pair[1].answer))
    others = _others_import(contents, group, machine)
    if best.answer == "no" and others and all(_of_another_python(one, machine) for one in group.libraries):
        return against("unknown", Reason.PYTHON, library.python, f"{library.path}, which nothing says is needed")
    return replace(best, by=(library.path,))


def _of_another_python(library: Library, machine: Machine) -> bool:
    python = machine.python
    return python is not None and library.python.startswith("cp3") and library.python != f"cp3{python.minor}"


def _others_import(contents: Contents, group: alternatives.Group, machine: Machine) -> bool:
    """Whether the wheel is for other Pythons too, and has another module for the one named."""
    if contents.tag is None or contents.tag[1] not in ("abi3", "none"):
        return False
    others = (one for one in contents.libraries if one not in group.libraries and one.is_module)
    return any(not _of_another_python(one, machine) for one in others)


_ANY_DRIVER = CudaVersion(99, 0)
_AOT = Settings(jit=JitMode.AOT)


def _host(file: HostFile, torch: TorchVersion, cxx11: bool, machine: Machine) -> Host:
    """A machine that meets every need of the library but for what the user named."""
    cuda = _cuda(torch)
    if cuda is None and file.cuda_major is not None and torch.local != "cpu":
        cuda = CudaVersion(file.cuda_major, 0)
    exact = file.python.removeprefix("cp3").removesuffix("t")
    python = machine.python or Release(3, int(exact) if exact.isdecimal() else 12)
    gpus = (Gpu(0, machine.gpu, "the GPU named"),) if machine.gpu is not None else ()
    driver = machine.driver or max((code.min_driver for code in file.code), default=_ANY_DRIVER)
    return Host(
        "Linux", file.machine, python, machine.glibc or file.glibc, file.glibcxx, TorchInfo(torch, cxx11, cuda),
        driver=driver, gpus=gpus,
    )  # fmt: skip


def _info(file: HostFile) -> BuildInfo:
    return BuildInfo("0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, host=(file,))
