"""Argcomplete, where it is installed, offers what the parser takes; asked from bash by the line that the docs have."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.kit import spawn

OFFERED = {
    "precast do": ["doctor"],
    "precast cache prune --m": ["--max-size"],
    "precast why rms_norm_b": ["rms_norm_backward"],
    "precast warm FusedAdamW CPUAdamL": ["CPUAdamLoader"],
    "precast import-cache car": ["cargo.tar"],
}


def test_bash_offers_what_may_follow(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "cargo.tar").touch()
    (line,) = re.findall(r"^eval .* # in ~/\.bashrc", (checkout / "docs/reference/cli.md").read_text(), re.MULTILINE)
    ask = """
        for COMP_LINE in "$@"; do
            COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_POINT=${#COMP_LINE} COMP_TYPE=9
            COMPREPLY=()
            _python_argcomplete precast "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
            echo ${COMPREPLY[@]}
        done
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = spawn.run("bash", "-c", f"{line}\n{ask}", "bash", *OFFERED, cwd=tmp_path, env=spawn.environ(PATH=path))
    assert [words.split() for words in done.stdout.splitlines()] == list(OFFERED.values()), done.stderr


def test_without_a_shell_that_asks_argcomplete_is_not_imported() -> None:
    code = "import sys; sys.modules['argcomplete'] = None; from precast.__main__ import main; main(['list'])"
    assert spawn.python("-c", code).stderr == ""
