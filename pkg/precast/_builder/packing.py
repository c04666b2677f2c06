"""Device code as packed in a wheel: one ``.xz`` per image, unpacked with limits on memory and size.

Deflate, the compression of wheels, makes files nearly twice as large (docs/decisions/packed-device-code.md). Each image
has its own file because a process reads only one or two. A Python that was compiled without liblzma lacks ``lzma``, so
it is imported on use, and the caller explains its ImportError.
"""

from __future__ import annotations

_DICTIONARY_BYTES = 1 << 20  # larger than an image, so a larger one would not help; the reader allocates as much
_MEMORY_BYTES = 8 << 20  # enough to read with that dictionary; a stream that needs more is not ours


class NotPacked(ValueError):
    """The bytes are not a packed image of the expected size; the message says how they differ."""


def lzma_error() -> str | None:
    """The error of ``import lzma`` in this Python; None if it works."""
    try:
        import lzma  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def settings() -> dict[str, int]:
    """Every setting that affects the packed bytes, apart from the image and the release of liblzma.

    Instructions have sixteen bytes and their fields four: contexts that know the place within them make images 2 %
    smaller, and cost no time to read.
    """
    import lzma

    places = {"lc": 0, "lp": 2, "pb": 4}
    return {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": _DICTIONARY_BYTES, **places}


def pack(image: bytes) -> bytes:
    """The image as one .xz stream; ImportError if this Python lacks lzma."""
    import lzma

    # Files are verified with the SHA-256 of the manifest. The format's own check is only for `xz -t`.
    return lzma.compress(image, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=[settings()])


def unpack(packed: bytes, content_bytes: int) -> bytes:
    """The image of exactly that size, or NotPacked; unpacks at most one byte more. ImportError as for ``pack``."""
    import lzma

    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES)
    try:
        content = reader.decompress(packed, max_length=content_bytes + 1)
    except lzma.LZMAError as error:
        raise NotPacked(f"not an .xz of ours: {error}") from error
    if len(content) > content_bytes:
        raise NotPacked(f"unpacks to more than the {content_bytes} bytes in the manifest")
    if not reader.eof:
        raise NotPacked(f"the .xz ends early, after {len(content)} unpacked bytes")
    if reader.unused_data:
        raise NotPacked(f"{len(reader.unused_data)} bytes lie behind the end of the .xz")
    if len(content) < content_bytes:
        raise NotPacked(f"unpacks to {len(content)} bytes, {content_bytes} in the manifest")
    return content
