"""Names that are probably misspelt: an implementation is registered for an op that nobody has defined."""

from __future__ import annotations

from collections.abc import Iterable

_LIKE = 0.7  # of difflib: "wav" and "wave" have 0.86, "scale" and "scale_backward" 0.53


def near_miss(name: str, defined: Iterable[str]) -> str | None:
    """The op that was probably meant. ``wave`` and its in-place form ``wave_`` are two ops, not a mistake."""
    import difflib  # only asked when something is wrong

    others = [other for other in defined if other.rstrip("_") != name.rstrip("_")]
    return next(iter(difflib.get_close_matches(name, others, n=1, cutoff=_LIKE)), None)


def refusal(op: str, meant: str, place: str, library: str) -> str:
    """The text of the error; ``place`` is the source line of the registration."""
    namespace, _, name = op.rpartition("::")
    return (
        f"there is no op {op}, but {library} implements it\n"
        f'  found   m.impl("{name}", ...) at {place}; {namespace}::{meant} is defined\n'
        f"  needed  the name of a schema that is defined before the library is loaded\n"
        f'  fix     1) write m.impl("{meant}", ...), or define a schema for {name}'
    )
