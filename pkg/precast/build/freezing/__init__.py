"""For PyInstaller, which finds this folder by the entry point ``pyinstaller40``: ``hook-precast.py`` lies here."""

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folders with hooks."""
    return [str(Path(__file__).parent)]
