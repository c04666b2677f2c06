"""The setuptools commands of setup.py. Nothing else imports this module: an installed precast needs no setuptools."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Distribution
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.sdist import sdist

from precast._abi.settings import Settings
from precast._builder import aot, metadata, provenance
from precast.core.manifest import BuildMode


def for_setup(settings: Settings, root: Path) -> dict[str, object]:
    """The arguments of ``setup()`` that depend on the environment; ``root`` is the folder of setup.py."""
    pure = aot.mode_of(settings) is BuildMode.PURE

    class BuildKernels(_BuildKernels):
        def run(self) -> None:
            if self.editable_mode:
                aot.warm_cache(settings)
            else:
                aot.stage_wheel(Path(self.build_lib), settings, root)

    class Wheel(bdist_wheel):  # type: ignore[misc]  # setuptools has no types
        """A wheel that does not depend on the Python it was built with."""

        def get_tag(self) -> tuple[str, str, str]:
            platform = super().get_tag()[2] if settings.arch is None else f"linux_{settings.arch}"
            return "py3", "none", "any" if pure else platform

    class Sdist(sdist):  # type: ignore[misc]
        """An sdist that needs neither git nor the network."""

        def make_release_tree(self, base_dir: str, files: list[str]) -> None:
            facts = provenance.of(root)  # before the release tree is written into the checkout and makes it dirty
            super().make_release_tree(base_dir, files)
            aot.stage_sdist(Path(base_dir), facts, settings)

    class Precast(Distribution):  # type: ignore[misc]
        """Sends a wheel with binaries to platlib, although setuptools compiles none of them."""

        def has_ext_modules(self) -> bool:
            return not pure

    return {
        "version": aot.version_of(settings),
        "distclass": Precast,
        "cmdclass": {"build": _Build, "build_kernels": BuildKernels, "bdist_wheel": Wheel, "sdist": Sdist},
        "setup_requires": aot.requirements(settings, root),
        **metadata.for_setup(root),
        "options": {"egg_info": {"egg_base": _temporary()}},
    }


class _Build(build):  # type: ignore[misc]
    """Builds in a private folder, so that no file of an earlier mode or label gets into this wheel."""

    sub_commands: ClassVar[list[Any]] = [*build.sub_commands, ("build_kernels", None)]  # a list: plugins append to it

    def finalize_options(self) -> None:
        self.build_base = _temporary()
        super().finalize_options()


class _BuildKernels(Command):  # type: ignore[misc]
    """Adds headers, binaries and the manifest to the files that ``build_py`` puts into the wheel."""

    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    build_lib = ""
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib = ""

    def finalize_options(self) -> None:
        self.build_lib = self.get_finalized_command("build").build_lib

    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


def _temporary() -> str:
    """A folder for the life of this process, so that a build leaves nothing in the tree or for the next build."""
    folder = tempfile.mkdtemp(prefix="precast-build-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
