"""Device code is unpacked within bounds, and whatever is not exactly one .xz of ours is refused by what is wrong."""

from __future__ import annotations

import hashlib
import lzma
import subprocess
import sys

import pytest

from precast._build import packing

IMAGE = b"".join(hashlib.sha256(str(number).encode()).digest() * 3 for number in range(500))
PACKED = packing.pack(IMAGE)
GIB = 1 << 30


def refusal(packed: bytes, content_bytes: int = len(IMAGE)) -> str:
    with pytest.raises(packing.NotPacked) as caught:
        packing.unpack(packed, content_bytes)
    return str(caught.value)


def test_what_is_packed_is_smaller_and_comes_back() -> None:
    assert packing.unpack(PACKED, len(IMAGE)) == IMAGE and len(PACKED) < len(IMAGE) / 2
    assert packing.unpack(packing.pack(b"x"), 1) == b"x"


def test_packing_again_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys; from precast._build import packing; sys.stdout.buffer.write(packing.pack(sys.stdin.buffer.read()))"
    )
    again = subprocess.run([sys.executable, "-c", code], input=IMAGE, capture_output=True, check=True).stdout
    assert again == PACKED


def test_the_bytes_begin_as_the_format_says() -> None:
    """The .xz format, 2.1.1: magic, then the check (1 is CRC32); 3.1.6: one LZMA2 filter (0x21), 1 MiB (0x10)."""
    assert PACKED[:8] == b"\xfd7zXZ\0\0\1"
    assert PACKED[14:17] == b"\x21\x01\x10"


@pytest.mark.parametrize(
    ("packed", "wanted", "said"),
    [
        (PACKED, len(IMAGE) - 1, f"unpacks to more than the {len(IMAGE) - 1} bytes in the manifest"),
        (PACKED, len(IMAGE) + 1, f"unpacks to {len(IMAGE)} bytes, {len(IMAGE) + 1} in the manifest"),
        (PACKED[:-1], len(IMAGE), f"ends early, after {len(IMAGE)} unpacked bytes"),
        (PACKED[:900], len(IMAGE), "ends early"),
        (b"", len(IMAGE), "ends early, after 0 unpacked bytes"),
        (PACKED + b"!", len(IMAGE), "1 bytes lie behind the end"),
        (PACKED + PACKED, 2 * len(IMAGE), f"{len(PACKED)} bytes lie behind the end"),
        (IMAGE, len(IMAGE), "not an .xz of ours: "),
        (lzma.compress(IMAGE, lzma.FORMAT_ALONE), len(IMAGE), "not an .xz of ours: "),
        (PACKED[:600] + b"\xff" + PACKED[601:], len(IMAGE), "not an .xz of ours: Corrupt input data"),
    ],
)
def test_anything_else_is_refused(packed: bytes, wanted: int, said: str) -> None:
    assert said in refusal(packed, wanted)


def test_a_stream_that_asks_for_much_memory_is_refused() -> None:
    greedy = lzma.compress(IMAGE, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9}])  # a dictionary of 64 MiB
    assert refusal(greedy) == "not an .xz of ours: Memory usage limit exceeded"


def test_a_bomb_does_not_go_off() -> None:
    """256 MiB in 40 kB: what is unpacked of it is what the manifest allowed, in the memory of that."""
    code = (
        "import resource, sys\n"
        "from precast._build import packing\n"
        "bomb = sys.stdin.buffer.read()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    packing.unpack(bomb, 1 << 20)\n"
        "except packing.NotPacked as error:\n    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    bomb = packing.pack(bytes(GIB // 4))
    assert len(bomb) < 50_000
    done = subprocess.run([sys.executable, "-c", code], input=bomb, capture_output=True, check=True)
    said, kib = done.stdout.decode().splitlines()
    assert said == "unpacks to more than the 1048576 bytes in the manifest"
    assert int(kib) < 16 << 10, "more than the dictionary and the image"


def test_a_python_without_lzma_says_so_to_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packing.lzma_error() is None
    monkeypatch.setitem(sys.modules, "_lzma", None)
    monkeypatch.delitem(sys.modules, "lzma")
    assert "_lzma" in str(packing.lzma_error())
    with pytest.raises(ImportError, match="_lzma"):
        packing.unpack(PACKED, len(IMAGE))
    with pytest.raises(ImportError, match="_lzma"):
        packing.pack(IMAGE)


def test_reading_of_the_module_does_not_import_lzma() -> None:
    code = "import sys, precast._build.packing, precast._load.loader; print({'lzma', '_lzma'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
