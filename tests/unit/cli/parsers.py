"""What a parser has; argparse has no public API for this."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every parser with the verbs that lead to it, without the program name."""
    yield path, parser
    for name, child in subcommands(parser).items():
        yield from commands(child, (*path, name))


def leaves(parser: argparse.ArgumentParser) -> set[str]:
    """Every command that can be run, without the program name."""
    return {" ".join(path) for path, found in commands(parser) if path and not subcommands(found)}


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The verbs of a parser."""
    return {name: child for action in _verbs(parser) for name, child in action.choices.items()}


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options and positional arguments of a parser, without its verbs and ``--help``."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return [action for action in parser._actions if not isinstance(action, hidden)]


def about(parser: argparse.ArgumentParser, verb: str) -> str:
    """The help line of a verb, which argparse stores apart from the verb's parser."""
    (text,) = (choice.help for action in _verbs(parser) for choice in action._choices_actions if choice.dest == verb)
    return text or ""


def _verbs(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
