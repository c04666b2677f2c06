"""Open untrusted zip and tar archives so that no header can make us use unbounded memory, disk or time.

Sizes, counts and names are checked before any content is unpacked. Content is unpacked in pieces, up to the size that
its header declares. A bomb, a damaged archive and a file that is no archive all raise :class:`BadArchive`.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from precast.core import files

PIECE = 1 << 20
_INDEX_BYTES = 8 << 20  # limit for a zip's central directory; that of torch, with 13,000 files, has 2 MB
_ZIP_MEMBERS = 50_000  # with the folders that names imply, each of which becomes one on a disk
_NAME_CHARACTERS, _NAME_FOLDERS = 512, 32
_GROWTH = 32, 64 << 20  # an archive may unpack to so many times its size plus so many bytes; machine code to 5 times
_TAR_HEADER_BYTES = 32 << 20  # limit for all of a tar except the content of the files that the caller reads
_XZ_MEMORY = 160 << 20  # `xz -9` needs 65 MB in the reader
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # zipfile unpacks other methods without a limit
_ENCRYPTED = 1


class BadArchive(ValueError):
    """The file is not a complete archive, or it exceeds a limit; the message says how."""


@contextmanager
def open_zip(path: Path, most: int | None = None) -> Iterator[Zip]:
    """A zip with a valid list of members. ``most`` limits the archive, and its unpacked size, in bytes."""
    with _regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise BadArchive(f"an archive of {size} bytes, more than the limit of {most}")
        try:
            with zipfile.ZipFile(_AtOnce(file)) as archive:
                yield Zip(archive, size, most)
        # The exceptions that zipfile and its decompressors raise for damaged bytes, all seen in fuzzing.
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, struct.error, NotImplementedError) as error:
            raise BadArchive(f"{type(error).__name__}: {error}") from error
        except UnicodeDecodeError as error:
            raise BadArchive(f"the name of a member is not text: {error}") from error


class Zip:
    """An open zip. ``listed`` has all members, including folders, in archive order; ``files`` has only the files."""

    def __init__(self, archive: zipfile.ZipFile, size: int, most: int | None) -> None:
        self._archive = archive
        self.listed = tuple(archive.infolist())
        self.files = tuple(member for member in self.listed if not member.filename.endswith("/"))
        if len(self.listed) > _ZIP_MEMBERS:
            raise BadArchive(f"{len(self.listed)} members, more than {_ZIP_MEMBERS}")
        for member in self.listed:
            _check_member(member)
        _check_names([member.filename.rstrip("/") for member in self.listed], {file.filename for file in self.files})
        whole = sum(file.file_size for file in self.files)
        limit = size * _GROWTH[0] + _GROWTH[1]
        if whole > min(limit, limit if most is None else most):
            raise BadArchive(f"a zip bomb: {size} bytes that unpack to {whole}")

    def pieces(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """The content of a member, up to the size in its header. BadZipFile if the content does not match it."""
        with self._archive.open(member) as stream:
            while piece := stream.read(PIECE):
                yield piece

    def read(self, member: zipfile.ZipInfo) -> bytes:
        """The whole content of a member, whose size has been checked."""
        return b"".join(self.pieces(member))

    def extract_all(self, folder: Path) -> None:
        """Write every file below a folder, without modes, links or times."""
        for member in self.files:
            path = folder / member.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.writelines(self.pieces(member))


def _check_names(names: list[str], files: set[str]) -> None:
    """BadArchive if a name appears twice, is used for both a file and a folder, or if they imply too many folders."""
    seen, folders = set[str](), set[str]()
    for name in names:
        if name in seen:
            raise BadArchive(f"the member {name!r} comes twice")
        seen.add(name)
        folder = name.rpartition("/")[0]
        while folder:
            if folder in files:
                raise BadArchive(f"the member {name!r} lies below the file {folder!r}")
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if len(files) + len(folders) > _ZIP_MEMBERS:
            raise BadArchive(f"{len(files)} files and {len(folders)} folders, more than {_ZIP_MEMBERS} together")


def _check_member(member: zipfile.ZipInfo) -> None:
    """BadArchive unless the member is a plain file or folder below the archive's root, stored in a supported way."""
    name = member.filename
    parts = name.rstrip("/").split("/")
    if name != member.orig_filename or "\\" in name or any(part in {"", ".", ".."} for part in parts):
        raise BadArchive(f"the member {member.orig_filename[:80]!r} is not a plain path inside the archive")
    if len(name) > _NAME_CHARACTERS or len(parts) > _NAME_FOLDERS:
        most = f"needed at most {_NAME_CHARACTERS} and {_NAME_FOLDERS}"
        raise BadArchive(f"the name {name[:80]!r}... has {len(name)} characters in {len(parts)} folders; {most}")
    if stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise BadArchive(f"the member {name!r} is a link or a device, not a plain file or folder")
    if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
        found = "encrypted" if member.flag_bits & _ENCRYPTED else f"compressed by method {member.compress_type}"
        raise BadArchive(f"the member {name!r} is {found}; needed a member that is only stored or deflated")


@contextmanager
def open_tar(path: Path) -> Iterator[Tar]:
    """A tar, plain, .gz or .xz, that can be read once from beginning to end."""
    with _regular(path) as file:
        try:
            source = _Forwards(_unpacked(file))
            with _headers():  # opening the archive reads the first header
                archive = tarfile.open(fileobj=source, mode="r:")  # noqa: SIM115
            with archive:
                yield Tar(archive, source)
        except (tarfile.TarError, zlib.error, EOFError, OSError, OverflowError) as error:
            raise BadArchive(f"{type(error).__name__}: {error}") from error


@contextmanager
def _headers() -> Iterator[None]:
    """Turns the ValueError that ``tarfile`` raises for an unreadable sparse header into BadArchive."""
    try:
        yield
    except ValueError as error:
        raise BadArchive(f"a header of the archive cannot be read: {error}") from error


class Tar:
    """An open tar. The content of a member can be read until the next member is requested."""

    def __init__(self, archive: tarfile.TarFile, source: _Forwards) -> None:
        self._archive, self._source = archive, source

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        while True:
            with _headers():
                member = self._archive.next()
            if member is None:
                return
            yield member

    def pieces(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """The content of a plain file. The caller has checked its size."""
        if not member.isreg():
            raise BadArchive(f"{member.name!r} is a link, a folder or a device, not a plain file")
        stream = self._archive.extractfile(member)
        if stream is None or member.sparse is not None:
            raise BadArchive(f"{member.name!r} is a sparse file, not a plain file")
        self._source.left += member.size
        while piece := stream.read(PIECE):
            yield piece


@contextmanager
def _regular(path: Path) -> Iterator[IO[bytes]]:
    try:
        descriptor, _ = files.open_regular(path)
    except OSError as error:
        raise BadArchive(str(error.strerror or error)) from error
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    """The unpacked bytes of a tar, in pieces of limited size and with limited memory."""
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=file) as stream:
            while piece := stream.read(PIECE):
                yield piece
    elif head == b"\xfd7zXZ\0":
        yield from _unpacked_xz(file)
    else:
        while piece := file.read(PIECE):
            yield piece


def _unpacked_xz(file: IO[bytes]) -> Iterator[bytes]:
    try:
        import lzma
    except ImportError as error:
        raise BadArchive(f"an .xz archive, and this Python has no module lzma: {error}") from error
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    while not reader.eof:
        packed = file.read(PIECE) if reader.needs_input else b""
        if reader.needs_input and not packed:
            raise EOFError("the .xz ends early")
        try:
            yield reader.decompress(packed, PIECE)
        except lzma.LZMAError as error:
            raise BadArchive(f"LZMAError: {error}") from error


class _AtOnce(io.BufferedReader):
    """A file that never returns more than the size limit of a zip index in one read, whatever a header asks for."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(io.FileIO(file.fileno(), closefd=False))

    def read(self, size: int | None = -1, /) -> bytes:
        to_the_end = size is None or size < 0
        data = super().read(_INDEX_BYTES + 1 if to_the_end else min(size or 0, _INDEX_BYTES + 1))
        if len(data) > _INDEX_BYTES:
            raise BadArchive(f"an index of members of more than {_INDEX_BYTES} bytes")
        return data


class _Forwards(io.RawIOBase):
    """A forward-only file over an iterator of pieces. ``left`` is the number of bytes that the reader may still take.

    tarfile reads headers of any size into memory, and one megabyte of .gz can hold one gigabyte of them. So headers
    share one budget with the files that the caller skips.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._at = pieces, 0
        self._piece, self._used = b"", 0
        self.left = _TAR_HEADER_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset < self._at:
            raise BadArchive("a tar whose members are not in order")
        while self._at < offset and self._take(offset - self._at):
            pass
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > self.left:
            raise BadArchive(f"{size} bytes of headers and skipped files, more than the limit of {self.left}")
        found = bytearray()
        while len(found) < size and (piece := self._take(size - len(found))):
            found += piece
        return bytes(found)

    def _take(self, most: int) -> bytes:
        """At most ``most`` of the next bytes; empty at the end."""
        while self._used == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece, self._used = piece, 0
        piece = self._piece[self._used : self._used + most]
        self._used += len(piece)
        self._at += len(piece)
        self.left -= len(piece)
        if self.left < 0:
            raise BadArchive(f"headers and skipped files of more than {_TAR_HEADER_BYTES} bytes")
        return piece
