"""``python -m tests.fuzz [SECONDS] [TARGET ...]``: coverage-guided fuzzing of the same targets with atheris.

Each target runs in a process of its own and fails on a crash, on an input that takes over ten seconds, and on more than
one gigabyte of memory.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = ("manifest", "meta", "archive", "wheel", "settings", "shared_object", "cubin", "packed")
LIMITS = ("-rss_limit_mb=1024", "-timeout=10", "-max_len=65536")


def fuzz(name: str, seconds: str, corpus: Path) -> None:
    """Does not return: atheris ends the process, with a status that is not 0 if the target fails."""
    import atheris

    logging.disable()
    with atheris.instrument_imports(include=["precast", "tools", "tests.fuzz"]):  # before anything else imports them
        from tests.fuzz.seeds import SEEDS
        from tests.fuzz.targets import TARGETS as FUNCTIONS

        seed = SEEDS[name]()
        assert FUNCTIONS[name](seed)  # what a target imports takes seconds, and is not to count as a hang

    (corpus / "seed").write_bytes(seed)
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", f"-artifact_prefix={corpus}/", *LIMITS]
    atheris.Setup([sys.argv[0], *options, str(corpus)], FUNCTIONS[name])
    atheris.Fuzz()


def main() -> int:
    """Fuzz the named targets, by default all, one after the other."""
    seconds, *names = sys.argv[1:] or ["60"]
    if names[:1] == ["--one"]:
        with tempfile.TemporaryDirectory(prefix="precast-fuzz-") as folder:
            fuzz(names[1], seconds, Path(folder))
    status = 0
    for name in names or TARGETS:
        print(f"fuzzing {name} for {seconds} s", flush=True)
        status |= subprocess.run([sys.executable, "-m", "tests.fuzz", seconds, "--one", name], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
