"""Find, query and call NVRTC through ctypes. Needs no toolkit, no header and no GPU.

Several threads of a process can compile at once, because ctypes releases the GIL: with two cores, NVRTC 12.1 and 13.0
took half the time for eight targets, the same as two processes.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from precast.core.capability import ComputeCapability
from precast.core.host import Nvrtc
from precast.core.version import CudaVersion

_TOOLKIT = Path("/usr/local/cuda")
_LIBRARY = re.compile(r"libnvrtc(-[0-9a-f]+)?\.so(\.\d+)*")
_BUILTINS = re.compile(r"libnvrtc-builtins(-[0-9a-f]+)?\.so(\.\d+)*")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The results of one compile. ``error`` is NVRTC's name for the failure, or None.

    ``ptx`` is also set for a cubin. ``symbols`` has the symbol of each requested instance.
    """

    image: bytes
    log: str
    error: str | None
    ptx: bytes = b""
    symbols: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def _locale_kept() -> Iterator[None]:
    """Restore this thread's locale: NVRTC 12.1 leaves it at "C", which makes Python read every text as ASCII."""
    uselocale = ctypes.CDLL(None).uselocale
    uselocale.argtypes, uselocale.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = uselocale(None)
    try:
        yield
    finally:
        uselocale(before)


class Compiler:
    """An NVRTC library in this process. Its builtins are opened first, by full path: NVRTC 13 finds them only then."""

    def __init__(self, library: str, builtins: str | None) -> None:
        if builtins is not None:
            ctypes.CDLL(builtins)
        self._library = ctypes.CDLL(library)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> CudaVersion:
        """Major and minor version; NVRTC does not report its patch level."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return CudaVersion(major.value, minor.value)

    def targets(self) -> tuple[ComputeCapability, ...]:
        """The GPUs that it can compile for."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(numbers))
        return tuple(ComputeCapability(number // 10, number % 10) for number in sorted(numbers))

    def compile(
        self,
        source: bytes,
        name: str,
        headers: Mapping[str, bytes],
        options: Sequence[str],
        *,
        ptx: bool,
        instances: Sequence[str] = (),
    ) -> Compiled:
        """Compile one program. ``headers`` maps the name in an #include to the content of the header.

        ``instances`` are template instances to use as entry points, in C++ syntax, such as ``scale<float, 4>``.
        """
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*headers.values())
        names = (ctypes.c_char_p * len(headers))(*(spelled.encode() for spelled in headers))
        self._check(
            self._library.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(headers), texts, names)
        )
        try:
            for expression in instances:
                self._check(self._library.nvrtcAddNameExpression(program, expression.encode()))
            arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            with _locale_kept():
                status = self._library.nvrtcCompileProgram(program, len(options), arguments)
            log = self._get(program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
            if status:
                return Compiled(b"", log, self._name(status))
            # NVRTC adds a NUL to PTX; the code that passes PTX to the driver adds its own.
            text = self._get(program, "PTX").rstrip(b"\0")
            image = text if ptx else self._get(program, "CUBIN")
            symbols = {expression: self._symbol(program, expression) for expression in instances}
            return Compiled(image, log, None, text, symbols)
        finally:
            self._check(self._library.nvrtcDestroyProgram(ctypes.byref(program)))

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _symbol(self, program: ctypes.c_void_p, expression: str) -> str:
        found = ctypes.c_char_p()
        self._check(self._library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(found)))
        return (found.value or b"").decode()

    def _name(self, status: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(status)
        return text.decode()

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"NVRTC: {self._name(status)}")


def find_nvrtc(
    torch_lib_dir: Path | None,
    cuda_home: str | None,
    exact_version: str | None,
    *,
    site_dirs: Iterable[Path] | None = None,
) -> tuple[Nvrtc | None, tuple[str, ...]]:
    """The NVRTC to use (torch's own, an ``nvidia-cuda-nvrtc*`` package, or a toolkit's), and the places searched.

    With ``exact_version`` ("13.0.88") only that version is accepted: a label's device code is compiled by it alone.
    """
    looked_at: list[str] = []
    for via, folder in _places(torch_lib_dir, cuda_home, site_dirs):
        if not folder.is_dir():
            looked_at.append(f"nvrtc: {via} ({folder}): not there")
            continue
        for library in _libraries(folder):
            found = _ask(library, via)
            if isinstance(found, str):
                looked_at.append(f"nvrtc: {via} ({library}): {found}")
            elif exact_version is not None and found.version != exact_version:
                looked_at.append(f"nvrtc: {via} ({library}): version {found.version}, needed {exact_version}")
            else:
                looked_at.append(f"nvrtc: {via} ({library}): version {found.version}")
                return found, tuple(looked_at)
    return None, tuple(looked_at)


def _places(
    torch_lib_dir: Path | None, cuda_home: str | None, site_dirs: Iterable[Path] | None
) -> Iterator[tuple[str, Path]]:
    """Every folder to search, in order of preference, without duplicates."""
    seen: set[Path] = set()
    for via, folder in _all_places(torch_lib_dir, cuda_home, site_dirs):
        resolved = folder.resolve()
        if resolved not in seen:
            seen.add(resolved)
            yield via, folder


def _all_places(
    torch_lib_dir: Path | None, cuda_home: str | None, site_dirs: Iterable[Path] | None
) -> Iterator[tuple[str, Path]]:
    if torch_lib_dir is not None:
        yield "torch's own", torch_lib_dir
        for folder in _package_folders(torch_lib_dir.parents[1]):
            yield "torch's own", folder
    for site in _site_dirs() if site_dirs is None else site_dirs:
        for folder in _package_folders(site):
            yield "package", folder
    homes = [Path(cuda_home)] if cuda_home else [*_toolkit_of_nvcc(), _TOOLKIT]
    for home in homes:
        yield "toolkit", home / "lib64"
        for folder in sorted(home.glob("targets/*/lib")):
            yield "toolkit", folder


def _site_dirs() -> list[Path]:
    return [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]


def _package_folders(site: Path) -> list[Path]:
    """The folders of the ``nvidia-cuda-nvrtc`` (CUDA 13: nvidia/cu13) and ``-cu12`` (nvidia/cuda_nvrtc) packages."""
    newest_first = sorted(site.glob("nvidia/cu[0-9]*/lib"), reverse=True)
    return [folder for folder in (*newest_first, site / "nvidia" / "cuda_nvrtc" / "lib") if folder.is_dir()]


def _toolkit_of_nvcc() -> list[Path]:
    nvcc = shutil.which("nvcc")
    return [Path(nvcc).resolve().parents[1]] if nvcc else []


def _libraries(folder: Path) -> list[Path]:
    """The NVRTC libraries of a folder, with one name for each file."""
    found = {path.resolve(): path for path in sorted(folder.glob("libnvrtc*")) if _LIBRARY.fullmatch(path.name)}
    return sorted(found.values(), reverse=True)


def _builtins(library: Path, version: CudaVersion | None) -> Path | None:
    """The builtins next to a library; ``version`` selects among several, as toolkit folders may have."""
    found = [path for path in sorted(library.parent.glob("libnvrtc-builtins*")) if _BUILTINS.fullmatch(path.name)]
    if version is not None:
        found = [path for path in found if f".so.{version}" in path.name] or found
    return found[-1] if found else None


def _ask(library: Path, via: str) -> Nvrtc | str:
    try:
        # Without builtins first, because the version tells which builtins belong to this library.
        compiler = Compiler(os.fspath(library), None)
        version = compiler.version()
        targets = compiler.targets()
    except (OSError, AttributeError, RuntimeError) as error:
        return f"cannot be used: {error}"
    builtins = _builtins(library, version)
    return Nvrtc(
        path=os.fspath(library),
        builtins=None if builtins is None else os.fspath(builtins),
        version=_full_version(library, version),
        targets=targets,
        found_via=via,
    )


def _full_version(library: Path, version: CudaVersion) -> str:
    """The version with its patch level, from the package's metadata or the toolkit's version.json, if found there."""
    for parent in library.resolve().parents[:4]:
        for metadata in parent.glob("nvidia_cuda_nvrtc*-*.dist-info"):
            text = metadata.name.removesuffix(".dist-info").rpartition("-")[2]
            if CudaVersion.parse(text) == version:
                return text
        try:
            known = json.loads((parent / "version.json").read_bytes())
            text = str(known["cuda_nvrtc"]["version"])
            if CudaVersion.parse(text) == version:
                return text
        except (OSError, ValueError, KeyError, TypeError):  # not a toolkit's root, or a version.json without parts
            continue
    return str(version)
