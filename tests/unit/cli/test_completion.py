"""Completion scripts offer what the parser takes, asked from the shells that are everywhere, or read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from precast._cli import completion
from precast._cli.parser import make_parser
from tests.unit.cli.conftest import Precast


def bash(words: str, folder: Path) -> list[str]:
    """What bash would offer for the last word, after the others."""
    script = completion.script(make_parser(), "bash")
    ask = f'{script}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _precast; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-uc", ask], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("precast do", ["doctor"]),
        ("precast cache ''", ["dir", "list", "verify", "prune", "clear", "--help"]),
        ("precast cache prune --m", ["--max-size"]),
        ("precast why rms_norm_b", ["rms_norm_backward"]),
        ("precast why silu", ["silu_and_mul"]),
        ("precast warm FusedAdamW CPUAdamL", ["CPUAdamLoader"]),
        ("precast why rms_norm --de", ["--device"]),
        ("precast warm rms_norm softmax_b", ["softmax_backward"]),
        ("precast completion z", ["zsh"]),
        ("precast import-cache car", ["cargo.tar"]),
    ],
)
def test_bash_offers_what_may_follow(words: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "cargo.tar").touch()
    assert bash(words, tmp_path) == offered


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_verb_and_option_is_in_every_script(precast: Precast, shell: str) -> None:
    status, script, _ = precast("completion", shell)
    assert status == 0
    for path, parser in completion.commands(make_parser()):
        assert all(word in script for word in path)
        for action in completion.arguments(parser):
            for option in action.option_strings:
                assert (f"-l {option[2:]}" if shell == "fish" else option) in script


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_read_by_its_shell_where_there_is_one(shell: str) -> None:
    program = shutil.which(shell)
    script = completion.script(make_parser(), shell)
    assert script.startswith("#compdef precast\n" if shell == "zsh" else "complete -c precast -f\n")
    if program is not None:
        done = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
