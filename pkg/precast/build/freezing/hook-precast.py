"""What PyInstaller does not see in precast: its prebuilt files, its sources, and what is imported by name.

The same of each installed package whose libraries precast opens: beside code, PyInstaller takes no file of theirs. The
libraries are data to it. As binaries they would be changed, and the loader opens only what the manifest has the
checksum of.
"""

from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from PyInstaller.utils.hooks import collect_submodules

import precast

_PACKAGE = Path(precast.__file__).resolve().parent


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and (path.suffix != ".py" or "csrc" in path.parts)


def _of_others() -> Iterator[tuple[str, str]]:
    """Libraries, their guards and manifests. Which packages the program imports is not known yet."""
    for one in distributions():
        files = [file for file in one.files or () if file.parts[0] != "precast"]
        if any(file.match("_C/build_info.json") for file in files):
            for file in files:
                if file.suffix in (".so", ".guarded") or ("_C" in file.parts and _is_data(Path(str(file.locate())))):
                    yield str(file.locate()), str(file.parent)


datas = [
    (str(path), str(Path("precast", path.relative_to(_PACKAGE)).parent))
    for path in sorted(_PACKAGE.rglob("*"))
    if _is_data(path)
]
datas += sorted(_of_others())
hiddenimports = collect_submodules("precast", filter=lambda name: not name.startswith("precast.build."))
