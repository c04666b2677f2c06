"""``python -m tools <verb>``: one module per verb, each with a ``main(arguments) -> exit status``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

VERBS = {
    "audit": "derive every claim of a wheel's manifest again, from the bytes",
    "headers": "pin the stable headers of another torch",
    "matrix": "print matrix.toml as JSON, checked",
    "nvrtc": "ask the NVRTC of each label which GPUs it compiles for",
    "plan": "expand matrix.toml into the cells of an event",
    "qemu": "run a wheel for aarch64 under an emulator, and one for x86_64 on a processor without AVX-512",
}


def main(arguments: list[str]) -> int:
    """Run a verb; without one, or with an unknown one, list them."""
    if not arguments or arguments[0] not in VERBS:
        width = max(map(len, VERBS))
        print("python -m tools <verb>\n" + "\n".join(f"  {verb:{width}}  {text}" for verb, text in VERBS.items()))
        return 0 if arguments in ([], ["--help"], ["-h"]) else 2
    status: int = importlib.import_module(f"tools.{arguments[0]}").main(arguments[1:])
    return status


if __name__ == "__main__":
    # The tools work on the checkout they lie in, whichever precast is installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pkg"))
    sys.exit(main(sys.argv[1:]))
