"""Device code as a wheel holds it: one ``.xz`` for each image, and the bounds within which it is unpacked.

Deflate, the compression of wheels, leaves nearly twice what this does (docs/decisions/packed-device-code.md). A file
for each image, because a process reads one or two of them. ``lzma`` is part of Python, but not of a Python that was
compiled without liblzma; so it is imported where it is needed, and its ImportError is for the caller to explain.
"""

from __future__ import annotations

_DICTIONARY_BYTES = 1 << 20  # more than an image holds, so more would find nothing; the reader allocates as much
_MEMORY_BYTES = 8 << 20  # for a reader of that dictionary; a stream that asks for more is none of ours


class NotPacked(ValueError):
    """The bytes are not an image of the size they should have; the message says how they differ."""


def lzma_error() -> str | None:
    """What ``import lzma`` says in this Python; None where it works."""
    try:
        import lzma  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def settings() -> dict[str, int]:
    """All that shapes the bytes beside the image and the release of liblzma."""
    import lzma

    return {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": _DICTIONARY_BYTES}


def pack(image: bytes) -> bytes:
    """The image as one .xz stream; ImportError in a Python without lzma."""
    import lzma

    # The manifest's SHA-256 is what a file is held against; the check of the format is only for whoever runs `xz -t`.
    return lzma.compress(image, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=[settings()])


def unpack(packed: bytes, content_bytes: int) -> bytes:
    """The image of exactly that size, or NotPacked; never holds more than a byte above it. ImportError as above."""
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
