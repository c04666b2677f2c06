"""Lets make build the library, and puts it into the wheel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class Make(build_py):
    """`DEBUG=1` and `CUDA=1` reach make by the environment."""

    def run(self):
        super().run()
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count())
        subprocess.run(
            ["make", f"-j{jobs}", f"PYTHON={sys.executable}", f"BUILD={Path(self.build_lib).parent}/make"], check=True
        )
        shutil.copy(Path(self.build_lib).parent / "make" / "librowstats.so", Path(self.build_lib) / "rowstats")


class Wheel(bdist_wheel):
    """The library has the stable ABI: no Python is in it, and every torch from 2.10 on opens it."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Native(Distribution):
    """A wheel with a library in it goes where such wheels go."""

    def has_ext_modules(self):
        return True


setup(distclass=Native, cmdclass={"build_py": Make, "bdist_wheel": Wheel})
