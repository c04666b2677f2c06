"""Start child Pythons: they can import the same modules as this process, but nothing from the current directory.

This module imports only ``os`` and ``sys``, which every Python has loaded already, because the command line calls
:func:`leave_here` before it imports anything else.
"""

import os
import sys

# The interpreter options of this process also apply to its children.
_FLAGS = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
_WITHOUT_NUMPY = "Failed to initialize NumPy: No module named"  # torch warns at its import; precast needs no NumPy
# Python 3.10 has no -P and puts the current directory first. ``sys`` is built in, so importing it searches no folder.
_START = (
    "import sys; count = int(sys.argv[1]); sys.path[:] = sys.argv[2 : 2 + count]; sys.argv[:] = sys.argv[2 + count :]; "
    f"import runpy, warnings; warnings.filterwarnings('ignore', {_WITHOUT_NUMPY!r}, UserWarning); "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def interpreter() -> str:
    """The program that runs code in a child; empty without one, as where Python is embedded.

    Of a program that PyInstaller froze, ``sys.executable`` is that program: a child would be a second one of it.
    """
    return "" if getattr(sys, "frozen", False) else sys.executable


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module like ``python -m``; run it with :func:`environment`. KernelError without one."""
    own = interpreter()
    if not own:
        from precast.errors import KernelError

        needed = "a Python that can be started by itself"
        raise KernelError(
            f"{module} cannot run in a child process",
            found="a frozen program, whose Python cannot be started by itself",
            needed=needed,
            fix="run this in an ordinary Python, outside of the frozen program",
        )
    given = [option for flag, option in _FLAGS.items() if getattr(sys.flags, flag)]
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    path = child_path()
    return [own, *given, *safe, "-c", _START, str(len(path)), *path, module, *arguments]


def environment() -> dict[str, str]:
    """The environment of a child. Only absolute folders stay in PYTHONPATH, which Python reads before any code runs."""
    kept = dict(os.environ)
    named = _absolute(kept.pop("PYTHONPATH", "").split(os.pathsep))
    return {**kept, "PYTHONPATH": os.pathsep.join(named)} if named else kept


def leave_here() -> None:
    """Remove the current directory from the path of this process."""
    sys.path[:] = child_path()


def ignore_missing_numpy() -> None:
    """Hide the warning of torch that NumPy is missing, in this process. One about a broken NumPy is still shown."""
    import warnings

    warnings.filterwarnings("ignore", _WITHOUT_NUMPY, UserWarning)


def child_path() -> list[str]:
    """The path of this process without the current directory, with every entry absolute."""
    path = list(sys.path)
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib is not loaded yet
    except FileNotFoundError:  # deleted, so relative entries lead nowhere
        return _absolute(path)
    named = [] if sys.flags.ignore_environment else _absolute(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    named.append(os.path.dirname(package))  # noqa: PTH120
    return without_here(path, here, named=named, library=os.path.dirname(os.__file__))  # noqa: PTH120


def without_here(path: list[str], here: str, *, named: list[str], library: str) -> list[str]:
    """``path`` without the entries that Python adds for the current directory; all others stay, made absolute.

    A relative entry for the directory is removed. An absolute one is removed if it comes before the standard
    ``library``, where only -m, the folder of a script and PYTHONPATH can put it. It stays if it is ``named``: in
    PYTHONPATH as an absolute path, or as the folder that this package was imported from. An entry after the library
    comes from an installation, such as an editable one.
    """
    place = os.path.realpath(here)
    allowed = {os.path.realpath(folder) for folder in named}
    first = path.index(library) if library in path else len(path)
    kept = []
    for index, entry in enumerate(path):
        whole = os.path.join(here, entry)  # noqa: PTH118 - an absolute entry stays as it is spelled
        if os.path.realpath(whole) == place:
            added = not os.path.isabs(entry) or index < first  # noqa: PTH117
            if added and (place not in allowed or not os.path.isabs(entry)):  # noqa: PTH117
                continue
        kept.append(whole)
    return kept


def _absolute(entries: list[str]) -> list[str]:
    return [entry for entry in entries if os.path.isabs(entry)]  # noqa: PTH117
