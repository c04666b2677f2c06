"""``python -m tests.fuzz [SECONDS] [TARGET]``: coverage-guided fuzzing of the same targets with atheris."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TARGETS = ("manifest", "meta", "shared_object", "cubin", "packed")


def fuzz(name: str, seconds: str, corpus: Path) -> None:
    """Does not return: atheris ends the process, with a status that is not 0 if the target fails."""
    import atheris

    with atheris.instrument_imports(include=["precast", "tests.fuzz"]):  # before anything else imports them
        from tests.fuzz.seeds import SEEDS
        from tests.fuzz.targets import TARGETS as FUNCTIONS

    (corpus / "seed").write_bytes(SEEDS[name]())
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=65536", str(corpus)], FUNCTIONS[name])
    atheris.Fuzz()


def main() -> int:
    """One target in this process, or all, each in a process of its own."""
    seconds, *names = sys.argv[1:] or ["60"]
    if names:
        with tempfile.TemporaryDirectory(prefix="precast-fuzz-") as folder:
            fuzz(names[0], seconds, Path(folder))
    status = 0
    for name in TARGETS:
        print(f"fuzzing {name} for {seconds} s", flush=True)
        status |= subprocess.run([sys.executable, "-m", "tests.fuzz", seconds, name], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
