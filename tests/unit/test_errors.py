"""An error is its parts: they are the lines of its text and its attributes, also after a pickle."""

from __future__ import annotations

import pickle

import pytest

from precast import errors


def test_the_parts_are_the_lines_and_the_attributes() -> None:
    error = errors.KernelError("it broke", found=["a", "b"], needed="c", env="here", fix=["do x", "do y"])
    assert str(error).splitlines() == [
        "it broke",
        "  found   a",
        "          b",
        "  needed  c",
        "  env     here",
        "  fix     1) do x",
        "          2) do y",
    ]
    assert (error.what, error.found, error.needed, error.fix) == ("it broke", ["a", "b"], "c", ["do x", "do y"])


def test_a_part_that_is_empty_has_no_line() -> None:
    assert errors.block("it broke", found="", needed=[], fix="do x", more="docs") == (
        "it broke\n  fix     1) do x\n  more    docs"
    )
    assert str(errors.KernelError("it broke")) == "it broke"


@pytest.mark.parametrize("kind", [errors.KernelError, errors.BuildFailed, errors.PrebuiltRefused])
def test_a_pickle_keeps_the_parts(kind: type[errors.KernelError]) -> None:
    error = kind("it broke", found="a", fix="do x")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) and vars(again) == vars(error)
