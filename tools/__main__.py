"""``python -m tools <verb>``: one module per verb, each with a ``main(arguments) -> exit status``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

VERBS = {
    "audit": "ask every guard of a release whether a wheel keeps its promise",
    "build": "one wheel from its parts: built, repaired, audited, tried",
    "check-set": "hold a folder of wheels against the plan",
    "constraints": "print the versions that make installs on this machine",
    "dev": "build kernel families for this machine after an edit, and only what changed",
    "device": "compile the device code of one label",
    "headers": "pin the headers of another torch",
    "host": "compile the host library of one torch ABI",
    "index": "write the package index of a wheelhouse: a folder for each label",
    "matrix": "print matrix.toml as JSON, checked",
    "nvrtc": "ask the NVRTC of each label which GPUs it compiles for",
    "plan": "expand matrix.toml into the cells of an event",
    "prove-classic": "run the host library in a torch, and keep the evidence",
    "publish": "take a checked release out of its run, step by step",
    "qemu": "run a wheel for aarch64 under an emulator, and one for x86_64 on a processor without AVX-512",
    "release": "make a whole release on this machine",
    "repair": "make a built wheel what is published: tag, bill of materials, one form",
    "reproduce": "build a label's wheel twice, in unlike surroundings, and compare the bytes",
    "sdist": "make the sdist that every wheel is built from",
    "site": "build the documentation site",
    "smoke": "install a wheel into a fresh environment and run one op from it",
    "tables": "write what repeats matrix.toml: tables of the docs, what the package knows of CUDA toolkits",
    "torch-names": "record which release of torch exports which name, for xray and guard",
    "tune": "time the configurations of row kernels on this GPU",
}


def main(arguments: list[str]) -> int:
    """Run a verb; without one, or with an unknown one, list them."""
    if not arguments or arguments[0] not in VERBS:
        width = max(map(len, VERBS))
        print("python -m tools <verb>\n" + "\n".join(f"  {verb:{width}}  {text}" for verb, text in VERBS.items()))
        return 0 if arguments in ([], ["--help"], ["-h"]) else 2
    try:
        status: int = importlib.import_module(f"tools.verbs.{arguments[0].replace('-', '_')}").main(arguments[1:])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in {"tools", "precast"}:
            raise
        from precast.errors import block  # of this checkout, whose folder is not yet on the path above

        text = block(
            f"python -m tools {arguments[0]} needs the package {error.name}",
            found=f"{sys.executable}, which does not have it",
            needed="the environment of the tools",
            fix=["make tools && . .venv-tools/bin/activate", "the same command again"],
        )
        print(text, file=sys.stderr)
        return 1
    except OSError as error:  # not handled by the verb: a path of the command line, or a full disk
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"python -m tools {arguments[0]}: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    # The tools use the precast of their own checkout, not an installed one.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pkg"))
    from precast._builder import process

    process.end_cleanly()  # a job that is cancelled leaves no step of a release running, and no temporary folder
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
