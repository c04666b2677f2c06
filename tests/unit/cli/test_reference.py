"""docs/reference/cli.md is what the parsers say, and every command that a page names can be parsed."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from precast._cli import status
from precast._cli.parser import make_parser
from tests.unit.cli import parsers

PAGE = "docs/reference/cli.md"
BEGIN, END = "<!-- verbs -->\n\n", "\n<!-- end of verbs -->"


def reference(parser: argparse.ArgumentParser) -> str:
    """A section for each command; argparse's own formatting differs between versions of Python."""
    sections = []
    for path, found in parsers.commands(parser):
        if not path or parsers.subcommands(found):
            continue
        rows = [f"* `{shown(action)}`: {meaning(action)}" for action in parsers.arguments(found)]
        words = " ".join((parser.prog, *path, *(in_usage(action) for action in parsers.arguments(found))))
        section = [f"## `{' '.join((parser.prog, *path))}`", "", f"{about(parser, path)}.", "", f"    {words}", ""]
        sections += [*section, *([*rows, ""] if rows else [])]
    return "\n".join(sections)


def shown(action: argparse.Action) -> str:
    value = placeholder(action)
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def placeholder(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def in_usage(action: argparse.Action) -> str:
    if action.option_strings:
        return f"[{shown(action)}]"
    return f"[{placeholder(action)} ...]" if action.nargs == "*" else placeholder(action)


def meaning(action: argparse.Action) -> str:
    return (action.help or "which one").replace("%%", "%")


def about(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> str:
    """The help line of a command, its first letter large."""
    for word in path[:-1]:
        parser = parsers.subcommands(parser)[word]
    text = parsers.about(parser, path[-1])
    return text[:1].upper() + text[1:]


def test_the_page_is_what_the_parsers_say(checkout: Path, pytestconfig: pytest.Config) -> None:
    page = checkout / PAGE
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    shown_there, found, after = rest.partition(END)
    assert found, f"{PAGE} has no place for the verbs"
    made = reference(make_parser())
    if pytestconfig.getoption("--update-snapshots"):
        page.write_text(before + BEGIN + made + END + after, encoding="utf-8")
        shown_there = made
    assert shown_there == made, f"{PAGE} differs from the parsers: --update-snapshots writes it"


def test_the_page_has_every_status(checkout: Path) -> None:
    text = (checkout / PAGE).read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE) == [
        (str(code), meaning) for code, meaning in status.MEANINGS.items()
    ]


def named_commands(text: str) -> list[str]:
    """The commands in the code of a page: prose may begin a line with the name as well."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code = [line for block in fenced for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)
    before = r"(?:\$ )?(?:PRECAST_\w+=\S+ |CUDA_EXT=1 )*(?:python -m )?"
    return [found[1] for line in code if (found := re.match(rf"{before}(precast [a-z][^`\n#>]*)", line))]


def test_every_command_that_a_page_names_is_one(checkout: Path) -> None:
    pages = [*checkout.glob("docs/**/*.md"), *checkout.glob("*.md")]
    found = {command.strip() for page in pages for command in named_commands(page.read_text(encoding="utf-8"))}
    assert {"precast doctor --deep", "precast why rms_norm"} <= found
    commands = {" ".join(path) for path, _ in parsers.commands(make_parser())}
    for command in found:
        words = shlex.split(command)[1:]
        if " ".join(words) not in commands and "KERNEL" not in words and "[" not in command:
            make_parser().parse_args(words)


def test_a_command_that_is_none_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = named_commands("look with `precast docter --deep` first")
    with pytest.raises(SystemExit):
        make_parser().parse_args(command.split()[1:])
    assert named_commands("precast is a package\n```sh\nprecast why x\n```\n") == ["precast why x"]
