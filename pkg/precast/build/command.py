"""The setuptools command that compiles the extensions and records which Python, torch and CUDA the wheel fits."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import setuptools
from setuptools import Extension
from setuptools.command.build_ext import build_ext

from precast._builder import failure, provenance, toolchain
from precast._cubin.code import DeviceCode
from precast._load import probe
from precast.build import (
    alone,
    described,
    device,
    facts,
    failing,
    merging,
    ownership,
    preflight,
    registrations,
    wheel,
)
from precast.build.extensions import StableExtension, declared_floor, refuse_names
from precast.build.finished import Finished, Folder
from precast.core import edited, verify
from precast.core.manifest import BuildMode, HostFile
from precast.core.opening import inside
from precast.core.version import Label
from precast.errors import KernelError

_OURS = (StableExtension, DeviceCode)
failing.explain_uncaught()  # whatever setup.py does next


class BuildExtension(build_ext):  # type: ignore[misc]  # setuptools has no types
    """``cmdclass={"build_ext": BuildExtension}``: setuptools' command, which also writes manifest, guards and tag.

    It extends the command of torch if an extension is built for one torch, such as a CUDAExtension. A wheel for every
    torch needs no torch to build, and does not import it.
    """

    extensions: list[Extension]
    build_lib: str
    editable_mode: bool = False  # setuptools has this since version 64
    _made: tuple[Path, ...] = ()  # every file that this command wrote, relative to the build folder

    def __new__(cls, distribution: Any, **options: Any) -> Any:
        """Return the command that the extensions of this distribution need.

        ``cls`` may be a subclass: setuptools plugins, such as scikit-build-core, derive their own from any command.
        """
        bound = any(not isinstance(extension, _OURS) for extension in distribution.ext_modules or ())
        if bound and importlib.util.find_spec("torch") is not None:
            from torch.utils.cpp_extension import BuildExtension as OfTorch

            if not issubclass(cls, OfTorch):
                return object.__new__(type(cls.__name__, (cls, OfTorch), {}))
        return object.__new__(cls)

    @classmethod
    def with_options(cls, **options: Any) -> type[BuildExtension]:
        """The command with options for that of torch, such as ``no_python_abi_suffix=True`` and ``use_ninja=False``.

        They have no effect on a StableExtension or a DeviceExtension.
        """

        class WithOptions(cls):  # type: ignore[misc, valid-type]  # torch's takes them in its constructor
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, **options})

        return WithOptions

    def finalize_options(self) -> None:
        """Keep objects in the usual build folder: an editable install removes its temporary one."""
        super().finalize_options()
        if self.editable_mode:
            self.build_temp = str(self._kept("temp"))

    def run(self) -> None:
        """Build; an error of ours ends setup.py with its text alone, without a traceback."""
        try:
            preflight.refuse_old(setuptools.__version__, Path("pyproject.toml"))
            super().run()
        except KernelError as error:
            raise SystemExit(f"error: {error}") from error

    def build_extensions(self) -> None:
        """Compile everything, then write a manifest into each package."""
        if not self.editable_mode:
            self._build_everything()
            return
        lent, self.build_lib = self.build_lib, str(self._kept("lib"))
        try:
            self._build_everything()
            made = [(Path(self.build_lib) / relative, Path(lent) / relative) for relative in self._made]
        finally:
            self.build_lib = lent
        for source, target in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def _kept(self, what: str) -> Path:
        """The folder where setuptools keeps the results of a regular build."""
        base = self.get_finalized_command("build").build_base
        return Path(base) / f"{what}.{self.plat_name}-{sys.implementation.cache_tag}"

    def _build_everything(self) -> None:
        self._settings = probe.read_settings(building=True)
        bound = any(not isinstance(extension, _OURS) for extension in self.extensions)
        self._torch = probe.probe_host(self._settings, gpus=False).torch if bound else None
        self._compilers: dict[str, str] = {}
        self._devices: dict[str, device.Made] = {}
        every = list(self.extensions)
        refuse_names(every)
        theirs = [extension for extension in every if not isinstance(extension, _OURS)]
        preflight.refuse_missing(every)
        preflight.refuse_unbuildable(theirs, self._torch, self._settings)
        targets = preflight.arch_list(theirs, self._settings, os.environ)
        if targets is not None:
            os.environ[preflight.ARCH_LIST] = targets
        packages = tuple(self.distribution.packages or ())
        for extension in every:
            ownership.refuse_unowned(extension.name, packages, self.distribution.get_name())
        self._refuse_guarded_twice(every)
        registrations.refuse(every, self._python_files(packages))
        for extension in every:
            if isinstance(extension, _OURS):
                self._build_ours(extension)
        self.extensions = theirs
        try:
            if self.extensions:
                self._build_theirs()
        finally:
            self.extensions = every
        self._guard(every)

    def get_ext_filename(self, fullname: str) -> str:
        """The path in the package's ``_C`` folder, which only a guard reads."""
        extension = self.ext_map.get(fullname)
        package, _, name = fullname.rpartition(".")
        folder = _manifest_folder(package)
        if isinstance(extension, DeviceCode):
            return str(folder / verify.MANIFEST)
        if isinstance(extension, StableExtension):
            return str(folder / "host" / f"{name}.so")
        return str(folder / "host" / Path(super().get_ext_filename(fullname)).name)

    def get_ext_fullpath(self, ext_name: str) -> str:
        """The same path below the build folder; an editable install copies the file to the sources afterwards."""
        return str(Path(self.build_lib) / self.get_ext_filename(self.get_ext_fullname(ext_name)))

    def copy_extensions_to_source(self) -> None:
        """Copy everything next to the sources, because an editable install imports from there."""
        modules = {_guard(extension): [*extension.sources, *extension.depends] for extension in self.extensions}
        device_modules = {_guard(one) for one in self.extensions if isinstance(one, DeviceCode)}
        names = {where.as_posix() for where in self._made} | self._packages_here(modules)
        for relative in self._made:
            target = self._in_source(relative)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(self.build_lib) / relative, target)
            if relative in modules:
                core = "precast.core" if relative in device_modules else alone.reach(relative.as_posix(), names)
                with target.open("a", encoding="utf-8") as file:
                    file.write(edited.LINE.format(core=core, root=str(Path.cwd()), sources=modules[relative]))

    def get_outputs(self) -> list[str]:
        """Every file that this command wrote."""
        return [str(Path(self.build_lib) / relative) for relative in self._made]

    def get_source_files(self) -> list[str]:
        """What an sdist needs: also the headers of device code."""
        return [*super().get_source_files(), *(str(path) for one in self.extensions for path in device.sources(one))]

    def get_output_mapping(self) -> dict[str, str]:
        """For an editable install: map each built file to its copy in the source tree."""
        if not self.inplace:
            return {}
        return {str(Path(self.build_lib) / relative): str(self._in_source(relative)) for relative in self._made}

    def _build_ours(self, extension: Extension) -> None:
        output = Path(self.build_lib) / self.get_ext_filename(extension.name)
        folder = Path(self.build_temp) / "precast" / extension.name
        if isinstance(extension, StableExtension):
            from precast.build import ninja  # imported only when needed: imports dominate a small rebuild

            kind, version = ninja.build_library(extension, output, folder, self._settings)
            self._compilers[kind] = version
        else:
            self._devices[extension.name] = device.build_images(extension, output.parent, self._settings)
            self._compilers["nvrtc"] = self._devices[extension.name].nvrtc

    def _build_theirs(self) -> None:
        compiler, _ = toolchain.find_compiler(self._settings)
        if compiler is not None:
            self._compilers[compiler.kind] = compiler.version
        if self._settings.debug:
            for extension in self.extensions:
                _make_debug(extension)
        from setuptools.errors import CCompilerError  # an old setuptools, which run() refuses, has none

        said: list[str] = []
        try:
            with failing.heard() as said:
                super().build_extensions()
        except (CCompilerError, RuntimeError) as error:  # torch's command raises the second for ninja
            names = ", ".join(extension.name for extension in self.extensions)
            cause = failure.first_error("".join(said) or str(error))
            raise KernelError(
                f"{names} cannot be compiled",
                found=f"{cause}; all messages are above",
                needed="sources that compile",
                fix="correct the first error above",
            ) from error

    def _guard(self, every: Iterable[Extension]) -> None:
        """Put everything behind guards, as ``python -m precast.build guard`` does with a finished wheel."""
        folders: dict[str, Folder] = {}
        modules: dict[str, bytes] = {}  # of device code; a guard takes the place of any other
        for extension in every:
            where = _manifest_folder(_package(extension))
            old, made = folders.setdefault(where.as_posix(), Folder((), (), {})), self._devices.get(extension.name)
            hosts = (self._host_file(extension),) if made is None else ()
            images = made.files if made is not None else ()
            modules |= {_guard(extension).as_posix(): made.module.encode()} if made is not None else {}
            data = {file.path: Path(self.build_lib, where, file.path).read_bytes() for file in (*hosts, *images)}
            folders[where.as_posix()] = Folder((*old.hosts, *hosts), (*old.device, *images), old.data | data)
        label = self._label(folders.values())
        name, version = self.distribution.get_name(), self.distribution.get_version()
        guards = frozenset(_guard(one).as_posix() for one in every) - modules.keys()
        known = provenance.of(Path.cwd())
        data, infos = merging.behind_guards(
            [Finished(Path(name), name, version, "", label, {}, folders, guards)],
            mode=BuildMode.MACHINE if self._settings.label is None else BuildMode.RELEASE,
            commit=known.commit,
            dirty=known.dirty,
            source_digest=wheel.digest(path for one in every for path in (*one.sources, *one.depends)),
            compilers=tuple(sorted(self._compilers.items())),
        )
        _drop_strays(Path(self.build_lib), folders)
        own = alone.without_copies(self._packages((*data, *modules, *guards))) | (
            {} if self.editable_mode else device.shipped(every)
        )
        names = dict.fromkeys(self._packages_here(map(_guard, every)), b"")
        whole = alone.standing(names | own | modules | data, infos, guards)
        files = {where: content for where, content in whole.files.items() if where not in names or content}
        self._made = tuple(Path(where) for where in files if where not in own or where in guards)
        for relative, content in files.items():
            wheel.write_changed(Path(self.build_lib, relative), content)
        for place, line in whole.changed:
            print(f"changed {place}: {line}")
        why = described.why_precast(whole.infos, alone.importing(files))
        tag = wheel.tag_of(whole.infos)
        wheel.describe(self.distribution, tag, lambda metadata: described.requiring(metadata, whole.infos, why))

    def _host_file(self, extension: Extension) -> HostFile:
        path = Path(self.build_lib) / self.get_ext_filename(extension.name)
        library = facts.compiled(
            extension.name,
            path.name[path.name.index(".") :],
            path.read_bytes(),
            limited=bool(getattr(extension, "py_limited_api", False)),
        )
        torch = None if self._torch is None else facts.torch_abi(self._torch)
        file = facts.entry(library, torch, wheel.label_of_torch(self._torch), declared_floor(extension))
        return replace(file, debug=self._settings.debug)

    def _label(self, folders: Iterable[Folder]) -> Label:
        hosts = [file for folder in folders for file in folder.hosts]
        label = wheel.label_of(hosts, [image for folder in folders for image in folder.device], self._torch)
        asked = self._settings.label
        if asked is not None and asked != label:
            raise KernelError(
                f"PRECAST_LABEL={asked} does not match what is built here ({label.text or 'no label'})",
                found="code for every torch, which has no label"
                if not label.text
                else f"a torch or device code of {label}",
                needed=f"a torch of {asked}, or no PRECAST_LABEL",
                fix="unset PRECAST_LABEL",
            )
        return label

    def _packages_here(self, modules: Iterable[Path]) -> set[str]:
        """The ``__init__.py`` of each package around a module, among the sources: an editable install imports those."""
        around = {folder / "__init__.py" for module in modules for folder in module.parents if folder.parts}
        return {path.as_posix() for path in around if self._in_source(path).is_file()}

    def _packages(self, made: Iterable[str]) -> dict[str, bytes]:
        """The Python files of the wheel in the packages with guards, as build_py has put them there."""
        root = Path(self.build_lib)
        every = (path for top in {where.partition("/")[0] for where in made} for path in (root / top).rglob("*.py"))
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in every if not path.is_symlink()}

    def _refuse_guarded_twice(self, every: Iterable[Extension]) -> None:
        """Refuse a Python file with the name of an extension, because the extension's guard takes that name."""
        for extension in every:
            relative = _guard(extension)
            for path in (Path(self.build_lib) / relative, self._in_source(relative)):
                if path.is_file() and not wheel.is_made(path.read_text(encoding="utf-8")):
                    raise KernelError(
                        f"the guard of the extension {extension.name} would replace a Python file",
                        found=str(path),
                        needed="no file of that name: the guard takes its place, and opens the extension",
                        fix=f"rename {path}, or the extension",
                    )

    def _python_files(self, packages: Iterable[str]) -> Iterator[Path]:
        """The Python files of the packages, as far as they are there."""
        build_py = self.get_finalized_command("build_py")
        for package in packages:
            yield from sorted(Path(build_py.get_package_dir(package) or ".").glob("*.py"))

    def _in_source(self, relative: Path) -> Path:
        build_py = self.get_finalized_command("build_py")
        top, *rest = relative.parts
        return Path(build_py.get_package_dir(top), *rest)


def _package(extension: Extension) -> str:
    return str(extension.name.rpartition(".")[0])


def _guard(extension: Extension) -> Path:
    """The guard's path, which is that of the extension's module, relative to the build folder."""
    return Path(*extension.name.split(".")).with_suffix(".py")


def _manifest_folder(package: str) -> Path:
    return Path(*package.split("."), *inside(package))


def _make_debug(extension: Extension) -> None:
    """Add ``-O0 -g`` for host code and ``-G`` for device code, whether the options are a list or a dict."""
    host, code = ["-O0", "-g"], ["-O0", "-g", "-G"]
    options = extension.extra_compile_args
    if isinstance(options, dict):
        options["cxx"] = [*options.get("cxx", ()), *host]
        options["nvcc"] = [*options.get("nvcc", ()), *code]
    elif any(source.endswith(".cu") for source in extension.sources):
        extension.extra_compile_args = {"cxx": [*options, *host], "nvcc": [*options, *code]}
    else:
        extension.extra_compile_args = [*options, *host]


def _drop_strays(root: Path, folders: Mapping[str, Folder]) -> None:
    """Remove files of earlier builds, for another Python, GPU or precast, so that they do not get into this wheel."""
    for path in root.rglob(f"{alone.COPY}/*.py"):
        path.unlink()
    for where, folder in folders.items():
        for path in sorted((root / where).glob("*/*")):
            if path.relative_to(root / where).as_posix() not in folder.data:
                path.unlink()
