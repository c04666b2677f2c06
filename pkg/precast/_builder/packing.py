"""Device code as packed in a wheel: an ``.xz`` holds the images of related targets, each behind the one before it.

The images of a family are so alike that a file of several is a quarter smaller. But a reader unpacks everything before
its image, so a file holds only as much as a first call has time for (docs/decisions/packed-device-code.md). PTX has a
file of its own: it is text, and it serves if the machine code is damaged. A Python that was compiled without liblzma
lacks ``lzma``, so it is imported on use, and the caller explains its ImportError.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence

from precast.core.capability import GpuTarget, TargetKind

_DICTIONARY_BYTES = 4 << 20  # reaches back to the first image of a file; the reader allocates as much
_MEMORY_BYTES = 8 << 20  # enough to read with that dictionary; a stream that needs more is not ours
# What a reader may have to unpack before its image. It takes 10 ms at most, as one image resembles the next.
_AHEAD_BYTES = 3 << 19
_MOST_IMAGES = 16  # the name of a file lists its targets, and Linux allows a name 255 bytes
# The order of the generations in a file, by major version; newer ones follow. Hopper is first because it is the most
# common GPU of new installations, and neighbours resemble each other.
_GENERATIONS = {9: 0, 8: 1, 7: 2}


class NotPacked(ValueError):
    """The bytes are not a packed file of the expected content; the message says how they differ."""


def lzma_error() -> str | None:
    """The error of ``import lzma`` in this Python; None if it works."""
    try:
        import lzma  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def arrange(sizes: Mapping[GpuTarget, int]) -> list[list[GpuTarget]]:
    """The files for a family's images: the targets of each file, in their order, from the sizes of the images.

    A generation is not divided, except into files of sixteen images. It joins the file of the generation before it
    unless a reader would then have to unpack too much before the last image.
    """
    files: list[list[GpuTarget]] = []
    for _, group in itertools.groupby(sorted(sizes, key=_place), key=lambda target: _place(target)[:2]):
        generation = list(group)
        joined = [*files[-1], *generation] if files and files[-1][0].kind is generation[0].kind else []
        ahead = sum(sizes[target] for target in joined[:-1])
        if joined and ahead <= _AHEAD_BYTES and len(joined) <= _MOST_IMAGES:
            files[-1] = joined
        else:
            files += [generation[at : at + _MOST_IMAGES] for at in range(0, len(generation), _MOST_IMAGES)]
    return files


def _place(target: GpuTarget) -> tuple[bool, int, int, str]:
    """The place of a target among those of a family: machine code first, then by generation and capability."""
    generation = _GENERATIONS.get(target.capability.major, len(_GENERATIONS))
    return target.kind is TargetKind.PTX, generation, target.capability.number, target.suffix


def settings(kind: TargetKind) -> dict[str, int]:
    """Every setting that affects the packed bytes, apart from the images and the release of liblzma.

    Instructions have sixteen bytes and their fields four: contexts that know the place within them make machine code
    2 % smaller. PTX is text, and contexts that know the letter before make it 4 % smaller. Neither costs time to read.
    The files of a label are as small as with the preset 9e, and take a tenth less time to pack: matches of 128 bytes
    are long enough, where that preset looks for 273.
    """
    import lzma

    contexts = {"lc": 0, "lp": 2, "pb": 4} if kind is TargetKind.SASS else {"lc": 3, "lp": 0, "pb": 0}
    return {"id": lzma.FILTER_LZMA2, "preset": 9, "nice_len": 128, "dict_size": _DICTIONARY_BYTES, **contexts}


def pack(images: Sequence[bytes], kind: TargetKind) -> bytes:
    """The images, one after the other, as one .xz stream; ImportError if this Python lacks lzma."""
    import lzma

    # Files and images are verified with the SHA-256 of the manifest. The format's own check is only for `xz -t`.
    content = b"".join(images)
    return lzma.compress(content, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=[settings(kind)])


def unpack(packed: bytes, content_bytes: int) -> bytes:
    """The whole content of exactly that size, or NotPacked; unpacks one byte more at most. ImportError as ``pack``."""
    content, ended = _read(packed, content_bytes)
    if not ended:
        raise NotPacked(f"unpacks to more than the {content_bytes} bytes in the manifest")
    if len(content) < content_bytes:
        raise NotPacked(f"unpacks to {len(content)} bytes; the manifest says {content_bytes}")
    return content


def image(packed: bytes, offset: int, content_bytes: int, content_sha256: str) -> bytes:
    """One image, proved whole by its own hash, or NotPacked; unpacks nothing behind it. ImportError as for ``pack``."""
    end = offset + content_bytes
    content, _ = _read(packed, end)
    if len(content) < end:
        raise NotPacked(f"unpacks to {len(content)} bytes; the manifest says that the image ends at {end}")
    found = content[offset:end]
    if hashlib.sha256(found).hexdigest() != content_sha256:
        raise NotPacked("checksum mismatch of the unpacked image")
    return found


def _read(packed: bytes, most: int) -> tuple[bytes, bool]:
    """The first ``most`` bytes of the content, and whether that is all of it. A stream that ends must end properly."""
    import lzma

    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES)
    try:
        content = reader.decompress(packed, max_length=most + 1)
    except lzma.LZMAError as error:
        raise NotPacked(f"not an .xz that precast packed: {error}") from error
    if len(content) > most:
        return content[:most], False
    if not reader.eof:
        raise NotPacked(f"the .xz ends early, after {len(content)} unpacked bytes")
    if reader.unused_data:
        raise NotPacked(f"{len(reader.unused_data)} bytes lie behind the end of the .xz")
    return content, True
