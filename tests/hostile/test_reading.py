"""Hostile libraries, archives and folders, read by ``xray``; and the law, shown refusing."""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from precast._builder import archives, dlopen, elf, xray
from precast.core.version import Release
from precast.errors import KernelError
from tests.hostile import reading
from tests.kit.elves import Library

COUNT = 1000  # of seeds 0 to 11 as well, 12,000 libraries, none broke the law
HERE = Release(*map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").split()[1].split(".")[:2]))
of_this_machine = pytest.mark.skipif(platform.machine() != "x86_64", reason="the libraries are for x86_64")


@of_this_machine
def test_what_works_is_opened_and_what_does_not_is_refused(tmp_path: Path) -> None:
    wrong, answers = reading.broken(list(reading.cases(2026, COUNT)), tmp_path, HERE)
    assert wrong == {}
    assert min(answers[one] for one in ("yes", "no", "unknown")) > COUNT // 10, answers


@of_this_machine
@pytest.mark.parametrize(
    "library",
    [
        Library(versions=(("libc.so.6", "GLIBC_2.99", False),)),
        Library(needed=("libstdc++.so.6",), versions=(("libstdc++.so.6", "CXXABI_1.3.99", False),)),
        Library(undefined=("nowhere",)),
        Library(loads=False),
    ],
)
def test_the_law_refuses_a_reader_that_overlooks_a_need(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = reading.Case(library)
    assert reading.broken([case], tmp_path, HERE)[0] == {}
    plain = elf.read_shared_object(Library().to_bytes())
    monkeypatch.setattr(elf, "read_shared_object", lambda data: plain)
    monkeypatch.setattr(dlopen, "read", lambda *_: dlopen.Opening())
    found, _ = reading.broken([case], tmp_path, HERE)
    assert found == {case: "the answer is yes, and the loader does the opposite"}


def test_the_law_refuses_one_answer_for_every_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = reading.Case(Library(stack=7, machine=62 if platform.machine() == "x86_64" else 183))
    assert reading.broken([case], tmp_path, HERE)[0] == {}
    monkeypatch.setattr(dlopen, "read", lambda *_: dlopen.Opening())
    assert "executable stack" in reading.broken([case], tmp_path, HERE)[0][case]


def test_what_implies_much_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    read = 0
    pieces = archives.Zip.pieces

    def counted(self: archives.Zip, member: object) -> object:
        nonlocal read
        for piece in pieces(self, member):  # type: ignore[arg-type]
            read += len(piece)
            yield piece

    monkeypatch.setattr(archives.Zip, "pieces", counted)
    refused = {}
    for make in (reading.archives, reading.folders):
        for what, path in make(tmp_path):
            with pytest.raises(KernelError) as error:
                raise AssertionError(xray.read(path))
            reading.said(error.value)
            refused[what] = str(error.value)
    assert read < 64 << 20
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "folders, more than" in refused["many deep folders"] and "214.7 GB" in refused["sparse files"]
    assert "6.4 GB in 2 files" in refused["half files"]


def test_a_sentence_is_short() -> None:
    with pytest.raises(AssertionError, match="not a short sentence"):
        reading.said(KernelError("word " * 80))
    assert reading.said(KernelError("it cannot be read", found="nothing")) == "unreadable"
    assert replace(Library(), sections=False).to_bytes()
