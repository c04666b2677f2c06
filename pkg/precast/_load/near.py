"""Find the op that a misspelt registration probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from precast.errors import block

_LIKE = 0.7  # ratio of difflib: 0.86 for "wav" and "wave", 0.53 for "scale" and "scale_backward"


def near_miss(name: str, defined: Iterable[str]) -> str | None:
    """The op that was probably meant. ``wave`` and its in-place form ``wave_`` are two ops, not a mistake."""
    import difflib  # needed only for an error

    others = [other for other in defined if other.rstrip("_") != name.rstrip("_")]
    return next(iter(difflib.get_close_matches(name, others, n=1, cutoff=_LIKE)), None)


def refusal(op: str, meant: str, place: str, library: str) -> str:
    """The text of the error; ``place`` is the source line of the registration."""
    namespace, _, name = op.rpartition("::")
    return block(
        f"there is no op {op}, but {library} implements it",
        found=f'm.impl("{name}", ...) at {place}; {namespace}::{meant} is defined',
        needed="the name of a schema that is defined before the library is loaded",
        fix=f'write m.impl("{meant}", ...), or define a schema for {name}',
    )
