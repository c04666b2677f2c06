"""The commands of README.md and docs/questions.md: every line of a shell block, and every command within a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.newcomer.readme import blocks

# With an argument, so that the name of a program is not a command.
_COMMAND = re.compile(r"`((?:[A-Z_]+=\S+ )*(?:precast|pip|uv|make|python3?|gh|git|docker|sudo|apt-get) [^`]+)`")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Commands that no row runs, and why.
NOT_RUN = {
    "precast why": "a name: it takes a kernel, as in `precast why rms_norm`",
    "pip install": "a name: the blocks say what to install",
    "make bench ARGS=norm": "measures for minutes; tests/unit/test_benchmarks.py runs the parts",
    "make release-local": "builds 18 wheels in 13 minutes; tests/wheel runs its verbs",
    "gh attestation verify FILE --repo OWNER/NAME": "needs a public release and the network",
    "python -m tools reproduce --label cu129": "builds a wheel twice; tests/wheel runs the verb",
}
# Other rows run these, with an environment of their own for each.
OTHER_ROWS = ("CUDA_EXT=1 pip install .", "pip install .", "make demo", "make test")
LAST = "pip uninstall "


def commands(text: str) -> list[str]:
    """The commands of a page in order, each once, without comments."""
    lines = [line.partition(" #")[0].strip() for block in blocks(text, "sh") for line in block.splitlines()]
    lines += _COMMAND.findall(_FENCE.sub("", text).replace("\n", " "))
    return list(dict.fromkeys(filter(None, lines)))


def to_run(*pages: str) -> list[str]:
    """The commands that one row runs as they stand, what removes precast last."""
    found = dict.fromkeys(command for page in pages for command in commands(page))
    chosen = [command for command in found if command not in NOT_RUN and command not in OTHER_ROWS]
    return sorted(chosen, key=lambda command: command.startswith(LAST))


def unknown(known: Sequence[str], *pages: str) -> list[str]:
    """Names of ``known`` that no page has: a reason without its command."""
    found = {command for page in pages for command in commands(page)}
    return [command for command in known if command not in found]
