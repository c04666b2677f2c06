"""The build. Metadata is in pyproject.toml; what is compiled and packed is in ``precast._builder.aot``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "pkg"))  # the build backend keeps the project off the path

from precast._abi.settings import Settings  # noqa: E402
from precast._builder.commands import for_setup  # noqa: E402

# Every folder of sources counts as a package: setuptools warns about data in folders that are none.
CSRC = ["precast.csrc", *(f"precast.csrc.{name}" for name in find_namespace_packages(str(ROOT / "csrc")))]

setup(
    packages=[*find_packages("pkg"), *CSRC],
    package_dir={"": "pkg", "precast.csrc": "csrc"},
    package_data={"precast": ["py.typed"], "precast._builder": ["*.json"], **{name: ["*"] for name in CSRC}},
    exclude_package_data={name: ["family.toml"] for name in CSRC},  # a wheel has all of them in one file
    **for_setup(Settings.from_env(os.environ), ROOT),
)
