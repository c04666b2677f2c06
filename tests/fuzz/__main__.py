"""``python -m tests.fuzz [TARGET] [SECONDS]``: coverage-guided fuzzing of the same targets with atheris."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 60


def fuzz(name: str, corpus: Path, seconds: int) -> None:
    """Does not return: atheris ends the process, with a status that is not 0 if the target fails."""
    import atheris

    with atheris.instrument_imports(include=["precast"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=65536", str(corpus)], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    """One target in this process, or all, each in a process of its own."""
    from tests.fuzz.seeds import SEEDS

    if len(sys.argv) > 1 and sys.argv[1] in SEEDS:
        with tempfile.TemporaryDirectory(prefix="precast-fuzz-") as folder:
            (Path(folder) / "seed").write_bytes(SEEDS[sys.argv[1]]())
            fuzz(sys.argv[1], Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else SECONDS)
    seconds = sys.argv[1] if len(sys.argv) > 1 else str(SECONDS)
    status = 0
    for name in SEEDS:
        print(f"fuzzing {name} for {seconds} s", flush=True)
        status |= subprocess.run([sys.executable, "-m", "tests.fuzz", name, seconds], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
