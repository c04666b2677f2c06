"""What PyInstaller does not see in precast: its prebuilt files, its sources, and what is imported by name.

The libraries are data to it. As binaries they would be changed, and the loader opens only what the manifest has the
checksum of.
"""

from pathlib import Path

from PyInstaller.utils.hooks import collect_submodules

import precast

_PACKAGE = Path(precast.__file__).resolve().parent


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and (path.suffix != ".py" or "csrc" in path.parts)


datas = [
    (str(path), str(Path("precast", path.relative_to(_PACKAGE)).parent))
    for path in sorted(_PACKAGE.rglob("*"))
    if _is_data(path)
]
hiddenimports = collect_submodules("precast", filter=lambda name: not name.startswith("precast.build."))
