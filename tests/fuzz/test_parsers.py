"""Parsers of files that may be hostile: no crash but the documented error, and no accepted lie."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

BYTES = {name: SEEDS[name]() for name in TARGETS}
SLOW = ("wheel", "archive")  # every example is a file that is written and read
QUICK = [name for name in TARGETS if name not in SLOW]


def test_every_target_is_fuzzed_by_both() -> None:
    from tests.fuzz import __main__ as with_atheris

    assert set(with_atheris.TARGETS) == set(TARGETS) == set(SEEDS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_seed_is_accepted(name: str) -> None:
    assert TARGETS[name](BYTES[name])


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=600))
@settings(max_examples=60, deadline=None)
def test_any_bytes(name: str, data: bytes) -> None:
    # fails if the reader raises another exception than its own
    TARGETS[name](data)


edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=9), st.integers(0, 9)), max_size=6)


@pytest.mark.parametrize("name", QUICK)
@given(changes=edits, cut=st.floats(0, 1) | st.just(1.0))
@settings(max_examples=400, deadline=None)
def test_a_good_file_with_some_bytes_replaced_inserted_or_cut(
    name: str, changes: list[tuple[float, bytes, int]], cut: float
) -> None:
    # fails if the reader raises another exception than its own
    edited(name, changes, cut)


@pytest.mark.parametrize("name", SLOW)
@given(changes=edits, cut=st.floats(0, 1) | st.just(1.0))
@settings(max_examples=80, deadline=None)
def test_a_good_archive_with_some_bytes_replaced_inserted_or_cut(
    name: str, changes: list[tuple[float, bytes, int]], cut: float
) -> None:
    # fails if the reader raises another exception than its own
    edited(name, changes, cut)


def edited(name: str, changes: list[tuple[float, bytes, int]], cut: float) -> None:
    data = bytearray(BYTES[name])
    for place, new, removed in changes:
        at = int(place * len(data))
        data[at : at + removed] = new
    TARGETS[name](bytes(data[: int(cut * len(data))]))


NUMBERS = st.sampled_from([0, 1, 2, 3, 8, 0x3F, 0x40, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])


@pytest.mark.parametrize("name", ["shared_object", "cubin"])
@given(fields=st.lists(st.tuples(st.integers(0, 7), st.integers(16, 63), NUMBERS, st.sampled_from([2, 4, 8]))))
@settings(max_examples=400, deadline=None)
def test_headers_with_numbers_at_the_edges(name: str, fields: list[tuple[int, int, int, int]]) -> None:
    """Offsets, sizes and counts are where an ELF reader runs out of its file, or of memory."""
    data = bytearray(BYTES[name])
    table = int.from_bytes(data[40:48], "little")
    for section, offset, number, width in fields:
        at = offset if section == 0 else table + 64 * (section - 1) + offset
        data[at : at + width] = (number % 256**width).to_bytes(width, "little")
    # fails if the reader raises another exception than its own
    TARGETS[name](bytes(data))
