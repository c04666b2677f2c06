"""What is wrong with a wheel whatever the machine: a tag that promises too much, copies of torch, code for old GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from precast._builder import alternatives, bindings, dlopen
from precast._builder.xray import Contents, Library
from precast._builder.xray_verdict import is_foreign
from precast.core import known_bad
from precast.core.capability import CompiledCode, TargetKind
from precast.core.manifest import BuildInfo
from precast.core.reasons import Rejection

_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PLATFORM = re.compile(r"(manylinux(?:1|2010|2014)|manylinux_(\d+)_(\d+)|linux)_(x86_64|aarch64)")


def problems(contents: Contents) -> Iterator[Rejection]:
    """What is wrong with a wheel whatever the machine."""
    for where, why in contents.unread:
        yield Rejection("library", "a shared library of x86_64 or aarch64", why, where)
    yield from (bad for refuses, bad in _known_bad(contents) if refuses)
    groups = alternatives.groups(contents)
    yield from _runtimes(contents, groups)
    of_torch = any(library.needs_torch for library in contents.libraries)
    beside = {one.path: group.libraries for group in groups for one in group.libraries}
    for library in contents.libraries:
        if of_torch and is_foreign(library.path.rpartition("/")[2]):
            where = "torch, CUDA and OpenMP from where torch is installed"
            yield Rejection("bundled", where, "in the wheel", library.path)
            continue
        yield from _own(library)
        others = [{one.reason for one in _choosable(contents, other)} for other in beside.get(library.path, (library,))]
        yield from (one for one in _choosable(contents, library) if all(one.reason in checks for checks in others))
        if contents.tag is not None:
            yield from _tag(contents, library)


def warnings(contents: Contents) -> Iterator[Rejection]:
    """Known bad builds that only some code suffers from: a guard warns of them on the GPU that they are about."""
    yield from (bad for refuses, bad in _known_bad(contents) if not refuses)


def _known_bad(contents: Contents) -> Iterator[tuple[bool, Rejection]]:
    for library in contents.libraries:
        families = (library.module.rpartition(".")[2],) if library.listed is None else library.listed.families
        yield from bad_code(library.path, library.compiled, families)
    for _, info in contents.manifests:
        yield from bad_images(info)


def bad_images(info: BuildInfo) -> Iterator[tuple[bool, Rejection]]:
    """The known bad builds among the device code behind a manifest, as :func:`bad_code` gives them."""
    for image in info.device:
        yield from bad_code(image.name, (CompiledCode(image.target, "nvrtc", image.nvrtc),), (image.family,))


def bad_code(where: str, codes: Iterable[CompiledCode], families: Iterable[str]) -> Iterator[tuple[bool, Rejection]]:
    """The known bad builds among the code of a library, each with whether a guard refuses it."""
    for code, row in known_bad.among(codes, families):
        yield row.refuses, row.against(code).at("", where)


def _runtimes(contents: Contents, groups: Iterable[alternatives.Group]) -> Iterator[Rejection]:
    """A CUDA major that all libraries have, or have one beside them for."""
    majors = [{one.bound.cudart for one in group.libraries if one.bound.cudart} for group in groups]
    known = [some for some in majors if some]
    if known and not set.intersection(*known):
        found = ", ".join(map(str, sorted(set.union(*known))))
        yield Rejection("CUDA runtime", "one CUDA major", found, contents.name)


def _own(library: Library) -> Iterator[Rejection]:
    if library.opening.refused:
        yield Rejection("loader", "a library that the dynamic loader opens", library.opening.refused, library.path)
    if library.opening.executable_stack:
        yield Rejection(
            "stack", f"a stack for data, as glibc {dlopen.STRICT_STACK} wants", "one for code", library.path
        )
    if library.error:
        yield Rejection("code", "machine code and device code that can be read", library.error, library.path)
    if bindings.brings_runtime(library.info):
        yield Rejection("C++ runtime", "libstdc++.so.6 of the process", "one linked into it", library.path)
    if library.cpu.required:
        found = f"{', '.join(library.cpu.required)}, without asking the processor"
        yield Rejection("CPU", "instructions that every processor has", found, library.path)


def _choosable(contents: Contents, library: Library) -> Iterator[Rejection]:
    """What is wrong with a library, and does not matter if another one that stands for it is right."""
    if library.needs_torch:
        missing = library.missing()
        if all(missing.values()):
            release, names = min(missing.items(), key=lambda item: len(item[1]))
            yield Rejection("torch", "names that some torch has", f"{names[0]}, not in torch {release}", library.path)
    real = {code.target.capability for code in library.code if code.target.kind is TargetKind.SASS}
    if real and not any(code.target.kind is TargetKind.PTX for code in library.code):
        newest = max(real)
        if newest.major < 9:
            yield Rejection("GPU", "PTX, or code for newer GPUs", f"code for at most {newest}.x alone", library.path)
    label = re.search(r"cu(\d\d)\d+", contents.version.partition("+")[2])
    if label is not None and library.bound.cudart not in (None, int(label[1])):
        found = f"libcudart.so.{library.bound.cudart}"
        yield Rejection("label", f"CUDA {label[1]}, as +{label[0]} says", found, library.path)


def _tag(contents: Contents, library: Library) -> Iterator[Rejection]:
    """The tag of a wheel promises no more than its library keeps."""
    if contents.tag is None:
        raise AssertionError("a tag was there")
    python, abi, platform = contents.tag
    if library.python != "none" and abi == "none":
        yield Rejection("tag", "a wheel for the Python whose functions it calls", f"{python}-{abi}", library.path)
    if library.python.startswith("cp") and abi.startswith("cp") and library.python not in abi.split("."):
        yield Rejection("tag", f"a wheel for {library.python}", f"{python}-{abi}", library.path)
    for one in platform.split("."):
        known = _PLATFORM.fullmatch(one)
        if known is None or known[4] != library.info.machine:
            yield Rejection("tag", f"a platform of {library.info.machine}", one, library.path)
            continue
        promised = _MANYLINUX.get(known[1]) or ((int(known[2]), int(known[3])) if known[2] else None)
        if promised is not None and library.info.glibc[:2] > promised:
            needs = ".".join(map(str, library.info.glibc))
            yield Rejection("glibc", f"at most {promised[0]}.{promised[1]}, as {one} says", needs, library.path)
