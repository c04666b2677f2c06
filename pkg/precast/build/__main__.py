"""``python -m precast.build``: the options of a build for a Makefile, or the audit of a finished wheel.

``python -m precast.build init NAME`` writes a complete small package.
``python -m precast.build wheels SOURCE --torch 2.13,2.14`` builds a package for several torches, as one guarded wheel.
``python -m precast.build guard WHEEL... -o DIR`` puts a check before each library, and merges wheels.
``python -m precast.build test WHEEL --torch 2.13 --tests PATH`` runs tests against a wheel in a clean environment.
``python -m precast.build index WHEEL... -o SITE`` writes the pages of a package index.
``python -m precast.build ship packages.toml`` builds, guards, tests and indexes packages of the package index.

The exit status is 1 if the audit refused a wheel, 2 if an argument is wrong or there is no wheel, and otherwise 0.
"""

import sys

from precast._builder import python

if __name__ == "__main__":
    python.leave_here()
    python.ignore_missing_numpy()

import argparse
import importlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import process
from precast.build import audit, flags
from precast.errors import KernelError

# A verb imports no other one: most need what a Makefile's build does not have.
VERBS = {
    "init": "precast.build.scaffold",
    "wheels": "precast.build.wheels",
    "guard": "precast.build.guarding",
    "test": "precast.build.trying",
    "index": "precast.build.index",
    "ship": "precast.build.shipping",
}
_GROUPS = {
    "cflags": (flags.cflags, "options for a C++ file"),
    "cuda_flags": (flags.cuda_flags, "options for nvcc and a .cu file"),
    "ldflags": (flags.ldflags, "options for linking, after the objects"),
    "include": (flags.include, "the folders of headers alone"),
}


def main(arguments: list[str]) -> int:
    """Print the requested options on one line, audit wheels, or guard them."""
    if arguments[:1] and arguments[0] in VERBS:
        try:
            verb: Callable[[list[str]], int] = importlib.import_module(VERBS[arguments[0]]).main
        except KernelError as error:  # Python 3.10 without tomli
            print(error, file=sys.stderr)
            return 2
        try:
            return verb(arguments[1:])
        except OSError as error:  # not handled by the verb: a path of the command line, or a full disk
            where = f"{error.filename}: " if error.filename is not None else ""
            print(f"python -m precast.build {arguments[0]}: {where}{error.strerror or error}", file=sys.stderr)
            return 1
    parser = argparse.ArgumentParser(prog="python -m precast.build", description=__doc__)
    for name, (_, meaning) in _GROUPS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=meaning)
    parser.add_argument("--classic", action="store_true", help="options for the whole C++ API of the installed torch")
    parser.add_argument("--debug", action="store_true", help="options for a debugger: -O0 -g, and -G for device code")
    parser.add_argument("--audit", type=Path, nargs="+", metavar="WHEEL", help="compare wheels with their manifests")
    options = parser.parse_args(arguments)
    asked = [name for name in _GROUPS if getattr(options, name)]
    if bool(asked) == bool(options.audit):
        parser.error("ask for flags or for an audit: --cflags, --cuda-flags, --ldflags, --include or --audit WHEEL")
    try:
        if options.audit:
            return audit.report(options.audit)
        settings = Settings.from_env({**os.environ, **({"PRECAST_DEBUG": "1"} if options.debug else {})})
        words = [word for name in asked for word in _GROUPS[name][0](settings, classic=options.classic)]
        print(shlex.join(words))
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    process.end_cleanly()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
