"""What tests fetch from a package index, once: the NVRTC that a label is compiled by, releases of transformers."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from precast._builder import matrix, nvrtc
from precast.core.host import Nvrtc

MATRIX = matrix.load(Path(__file__).parents[2] / "matrix.toml")
LABELS = {str(spec.label): spec for spec in MATRIX.labels if spec.nvrtc is not None}


def pip_install(wanted: str, site: Path) -> None:
    """Put one package, and nothing that it requires, into a folder."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--target", str(site), wanted], check=True)


def package(wanted: str, site: Path, install: Callable[[str, Path], None] = pip_install) -> Path:
    """A folder with one package, which is fetched if the folder is not there or empty.

    It appears in one step, so that several runs of the tests may fetch at once: the first one is kept.
    """
    if site.is_dir() and any(site.iterdir()):
        return site
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent) as folder:
        staged = Path(folder, "site")
        install(wanted, staged)
        try:
            staged.rename(site)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    return site


def label_nvrtc(label: str, site: Path, install: Callable[[str, Path], None] = pip_install) -> Nvrtc:
    """A label's own NVRTC: from this environment, else from ``site``, into which it is fetched first."""
    spec = LABELS[label]
    assert spec.requirement is not None
    places = [*(Path(entry) for entry in sys.path if entry), site]
    found, looked_at = nvrtc.find_nvrtc(None, None, spec.nvrtc, site_dirs=places)
    if found is None:
        package(spec.requirement, site, install)
        found, looked_at = nvrtc.find_nvrtc(None, None, spec.nvrtc, site_dirs=[site])
    assert found is not None, looked_at
    return found
