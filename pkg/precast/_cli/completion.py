"""``precast completion SHELL``: generate a completion script from the parser, for bash, zsh or fish."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precast._cli import output, status

if TYPE_CHECKING:
    from precast._cli.names import Verbs

SHELLS = ("bash", "zsh", "fish")


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("completion", help='print a completion script: eval "$(precast completion bash)"')
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    output.say(script(options.parser, options.shell))
    return status.GOOD


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script, which maps each chain of verbs to the words that may follow it."""
    words = {" ".join(path): (found, _words(found)) for path, found in commands(parser)}
    if shell == "fish":
        return _fish(parser.prog, {path: found for path, (found, _) in words.items()})
    cases = "\n".join(
        f"    {shlex.quote(path)}) following={shlex.quote(' '.join(following))} ;;"
        for path, (_, following) in words.items()
    )
    return (_ZSH if shell == "zsh" else _BASH).format(prog=parser.prog, cases=cases)


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every parser with the verbs that lead to it, without the program name."""
    yield path, parser
    for name, child in subcommands(parser).items():
        yield from commands(child, (*path, name))


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The verbs of a parser. argparse has no public API for this."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options and positional arguments of a parser, without its verbs and ``--help``."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return [action for action in parser._actions if not isinstance(action, hidden)]


def _words(parser: argparse.ArgumentParser) -> list[str]:
    words = list(subcommands(parser))
    for action in arguments(parser):
        words += action.option_strings or _values(action)
    return [*words, "--help"]


def _values(action: argparse.Action) -> list[str]:
    """The possible values of an argument: its choices, or the kernel names."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.metavar == "KERNEL":
        from precast._cli import names

        return list(names.known())
    return []


_BASH = """\
_{prog}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} path= following= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    [[ $word == -* ]] || path="$path${{path:+ }}$word"
  done
  while :; do
    case $path in
{cases}
    *) [[ $path == *' '* ]] && {{ path=${{path% *}}; continue; }} ;;
    esac
    break
  done
  COMPREPLY=($(compgen -W "$following" -- "$cur"))
  [[ ${{#COMPREPLY[@]}} -gt 0 || $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -F _{prog} {prog}"""

_ZSH = """\
#compdef {prog}
_{prog}() {{
  local chain= following= word
  for word in ${{words[2,CURRENT-1]}}; do
    [[ $word == -* ]] || chain="$chain${{chain:+ }}$word"
  done
  while :; do
    case $chain in
{cases}
    *) [[ $chain == *' '* ]] && {{ chain=${{chain% *}}; continue; }} ;;
    esac
    break
  done
  compadd -- ${{=following}} || _files
}}
compdef _{prog} {prog}"""


def _fish(prog: str, parsers: dict[str, argparse.ArgumentParser]) -> str:
    lines = [f"complete -c {prog} -f"]
    for path, parser in parsers.items():
        seen = path.split()
        verbs = " ".join(subcommands(parser))
        conditions = [f"__fish_seen_subcommand_from {word}" for word in seen]
        if verbs:
            conditions.append(f"not __fish_seen_subcommand_from {verbs}")
        when = f" -n {shlex.quote('; and '.join(conditions))}" if conditions else ""
        for name, child in subcommands(parser).items():
            lines.append(f"complete -c {prog}{when} -a {name} -d {shlex.quote(_about(parser, name, child))}")
        for action in arguments(parser):
            about = f" -d {shlex.quote((action.help or '').replace('%%', '%'))}"
            lines += [f"complete -c {prog}{when} -l {option[2:]}{about}" for option in action.option_strings]
            if not action.option_strings and _values(action):
                lines.append(f"complete -c {prog}{when} -a {shlex.quote(' '.join(_values(action)))}")
            elif not action.option_strings:
                lines.append(f"complete -c {prog}{when} -F")
    return "\n".join(lines)


def _about(parser: argparse.ArgumentParser, name: str, child: argparse.ArgumentParser) -> str:
    """The help line of a verb, which argparse stores apart from the verb's parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                if choice.dest == name:
                    return choice.help or ""
    return child.description or ""
