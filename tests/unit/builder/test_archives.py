"""Archives that somebody else made: whatever a header asks for, the answer is one error, soon and in bounded memory."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder import archives
from precast._builder.archives import BadArchive, open_tar, open_zip
from precast._builder.cache import Cache
from precast._builder.cache_archive import import_cache
from precast.build import audit as audit_of_anybodys
from precast.errors import KernelError
from tests.kit import spawn
from tests.kit.wheels import make_sdist
from tools.shared import dists
from tools.shared.wheel import NotAWheel, read_wheel
from tools.verbs import audit

ROOT = Path(__file__).resolve().parents[3]
WHEEL = "precast-1.0-py3-none-manylinux_2_28_x86_64.whl"
Write = Callable[[zipfile.ZipFile], object]


def zipped(path: Path, write: Write) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        write(archive)
    return path


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def written(*names: str) -> Write:
    def write(archive: zipfile.ZipFile) -> None:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"x")

    return write


BAD_ZIPS: dict[str, tuple[Write, str]] = {
    "bomb": (lambda a: a.writestr("x", bytes(100 << 20)), "a zip bomb: [0-9]+ bytes that unpack to 104857600"),
    "many small bombs": (
        lambda a: [a.writestr(str(n), bytes(1 << 20)) for n in range(80)],
        "a zip bomb: [0-9]+ bytes that unpack to 83886080",
    ),
    "up": (written("a/../../b"), "is not a plain path inside"),
    "absolute": (written("/etc/passwd"), "is not a plain path inside"),
    "dot": (written("./a"), "is not a plain path inside"),
    "backslash": (written("a\\b"), "is not a plain path inside"),
    "no name": (written(""), "is not a plain path inside"),
    "below a file": (written("a", "a/b"), "'a/b' lies below the file 'a'"),
    "deep": (written("/".join("d" * 40)), "in 40 folders; needed at most 512 and 32"),
    "long": (written("d" * 1000), "has 1000 characters"),
    "link": (lambda a: a.writestr(link("a"), "/etc/passwd"), "a link or a device"),
    "lzma": (lambda a: a.writestr("a", bytes(1 << 20), zipfile.ZIP_LZMA), "compressed by method 14"),
    "bzip2": (lambda a: a.writestr("a", bytes(1 << 20), zipfile.ZIP_BZIP2), "compressed by method 12"),
}


@pytest.mark.parametrize("name", BAD_ZIPS)
def test_a_zip_is_refused_before_anything_is_unpacked(name: str, tmp_path: Path) -> None:
    write, words = BAD_ZIPS[name]
    with pytest.raises(BadArchive, match=words), open_zip(zipped(tmp_path / "a.zip", write)):
        pytest.fail("it was opened")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_comes_once(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="'a' comes twice"), open_zip(zipped(tmp_path / "a.zip", written("a", "a"))):
        pytest.fail("it was opened")


def test_counts_and_indices_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "a.zip", written(*map(str, range(11))))
    monkeypatch.setattr(archives, "_ZIP_MEMBERS", 10)
    with pytest.raises(BadArchive, match="11 members, more than 10"), open_zip(path):
        pytest.fail("it was opened")
    monkeypatch.setattr(archives, "_INDEX_BYTES", 400)
    with pytest.raises(BadArchive, match="an index of members of more than 400 bytes"), open_zip(path):
        pytest.fail("it was opened")
    with pytest.raises(BadArchive, match="more than the limit of 100"), open_zip(path, 100):
        pytest.fail("it was opened")


def test_the_folders_that_names_imply_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ZIP_MEMBERS", 10)
    with open_zip(zipped(tmp_path / "a.zip", written("a/b/c/x", "a/b/c/y", "a/d/x"))) as archive:
        assert len(archive.files) == 3
    path = zipped(tmp_path / "b.zip", written("a/b/c/d/x", "e/f/g/h/x"))
    monkeypatch.setattr(archives, "_ZIP_MEMBERS", 9)
    with pytest.raises(BadArchive, match="2 files and 8 folders, more than 9 together"), open_zip(path):
        pytest.fail("it was opened")


def test_a_member_is_read_no_further_than_it_declares(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", lambda a: a.writestr("x", bytes(50 << 20)))
    data = bytearray(path.read_bytes())
    size = data.rindex(b"PK\x01\x02") + 24
    assert int.from_bytes(data[size : size + 4], "little") == 50 << 20
    data[size : size + 4] = (10).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(BadArchive, match="Bad CRC-32"), open_zip(path) as archive:
        assert [len(archive.read(file)) for file in archive.files] == []


@pytest.mark.parametrize("opened", [open_zip, open_tar])
def test_only_a_regular_file_is_opened(opened: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, words in (("fifo", "not a regular file"), ("zero", "not a regular file"), ("none", "No such file")):
        with pytest.raises(BadArchive, match=words), opened(tmp_path / name):  # type: ignore[attr-defined]
            pytest.fail("it was opened")


def tar_of(kind: bytes, size: int) -> bytes:
    """One header of a kind that tarfile reads whole, and that many zeros."""
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, size
    return member.tobuf() + bytes(size) + bytes(1024)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
@pytest.mark.parametrize("pack", [gzip.compress, lambda data: lzma.compress(data, preset=0)], ids=["gz", "xz"])
def test_a_tar_of_headers_without_end_is_not_read_into_memory(
    kind: bytes, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(pack(tar_of(kind, 64 << 20)))
    with pytest.raises(BadArchive, match="headers and skipped files"), open_tar(path) as tar:
        list(tar)


def test_an_xz_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(bytes(1024), filters=filters))
    with pytest.raises(BadArchive, match="Memory usage limit"), open_tar(tmp_path / "a.tar.xz") as tar:
        list(tar)


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_a_flipped_byte_is_the_documented_error_wherever_it_is(suffix: str, tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode=f"w:{suffix}") as tar:
        member = tarfile.TarInfo("precast-cache.json")
        text = os.urandom(3000)
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    data = whole.getvalue()
    for at in range(0, len(data), 97):
        path = tmp_path / "a.tar"
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with pytest.raises(KernelError):
            import_cache(path, Cache(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def bomb(folder: Path) -> Path:
    return zipped(folder / WHEEL, lambda a: a.writestr("precast/_C/build_info.json", bytes(300 << 20)))


def test_everything_that_reads_a_wheel_refuses_a_bomb(tmp_path: Path) -> None:
    path = bomb(tmp_path)
    with pytest.raises(NotAWheel, match="a zip bomb"):
        read_wheel(path)
    with pytest.raises(dists.IndexRefused, match="a zip bomb"):
        dists.read_dist(path)
    with pytest.raises(KernelError, match="a zip bomb"):
        audit_of_anybodys.audit(path)


def test_an_index_is_read_to_its_end_unless_it_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_INDEX_BYTES", 4)
    path = tmp_path / "file"

    def read(content: bytes, *size: int | None) -> bytes:
        path.write_bytes(content)
        with path.open("rb") as file:
            return archives._AtOnce(file).read(*size)

    assert read(b"abcd") == read(b"abcd", None) == read(b"abcd", -1) == read(b"abcd", 4) == read(b"abcd", 9) == b"abcd"
    assert (read(b"abcdef", 4), read(b"abcdef", 0), read(b"abcdef", 1)) == (b"abcd", b"", b"a")
    for size in ((), (None,), (-1,), (5,), (9,)):
        with pytest.raises(BadArchive, match="an index of members of more than 4 bytes"):
            read(b"abcde", *size)


def test_the_headers_of_a_tar_may_use_their_budget_up_and_no_byte_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_TAR_HEADER_BYTES", 4)

    def file() -> archives._Forwards:
        return archives._Forwards(iter([b"ab", b"", b"cdef"]))

    whole = file()
    assert (whole.read(4), whole.read(0), whole.left, whole.tell()) == (b"abcd", b"", 0, 4)
    for size, left in ((1, 0), (5, 4), (-1, 4)):
        with pytest.raises(BadArchive, match=f"^{size} bytes of headers and skipped files, more than .* {left}$"):
            (file() if left else whole).read(size)
    assert file().seek(4) == 4
    with pytest.raises(BadArchive, match="headers and skipped files of more than 4 bytes"):
        file().seek(5)


def test_the_audit_says_so_in_one_line_and_in_little_memory(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, -1)); sys.path.insert(0, 'pkg'); "
        "from tools.verbs import audit as a; sys.exit(a.main(sys.argv[1:]))"
    )
    done = spawn.python("-c", code, bomb(tmp_path), cwd=ROOT, status=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    assert "a zip bomb: " in done.stderr and WHEEL in done.stderr


def test_the_audit_refuses_a_minor_of_torch_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--only-torch", "9.9", "x.whl"]) == 2
    assert "has no torch '9.9'; it has: 2.4, 2.5" in capsys.readouterr().err


def test_metadata_is_not_parsed_at_any_length(tmp_path: Path) -> None:
    name = "precast-1.0.dist-info/METADATA"
    path = zipped(tmp_path / WHEEL, lambda a: a.writestr(name, bytes(5 << 20)))
    with pytest.raises(NotAWheel, match="METADATA has 5242880 bytes"):
        read_wheel(path)


def test_an_sdist_is_refused_by_name(tmp_path: Path) -> None:
    path = make_sdist(tmp_path)
    assert dists.read_dist(path).version.public == "1.0"
    path.write_bytes(gzip.compress(tar_of(tarfile.XHDTYPE, 64 << 20)))
    with pytest.raises(dists.IndexRefused, match="not an sdist"):
        dists.read_dist(path)
