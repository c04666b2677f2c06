"""Device code is unpacked within bounds, and whatever is not exactly one .xz of ours is refused by what is wrong."""

from __future__ import annotations

import hashlib
import itertools
import lzma
import sys
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import aot, binaries, catalogue, device, machine, packing
from precast._builder.binaries import Made
from precast._builder.cache import Artifact, Cache
from precast._builder.catalogue import Family
from precast.core.capability import GpuTarget, TargetKind
from precast.core.manifest import device_path
from precast.errors import KernelError
from tests.kit import hosts as ex
from tests.kit import spawn

IMAGE = b"".join(hashlib.sha256(str(number).encode()).digest() * 3 for number in range(500))
SASS, PTX = TargetKind.SASS, TargetKind.PTX
PACKED = packing.pack([IMAGE], SASS)
OTHER = IMAGE[1000:] + b"another end"
BOTH = packing.pack([IMAGE, OTHER], SASS)


def refusal(packed: bytes, content_bytes: int = len(IMAGE)) -> str:
    with pytest.raises(packing.NotPacked) as caught:
        packing.unpack(packed, content_bytes)
    return str(caught.value)


def digest(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()


def image_refusal(packed: bytes, offset: int, image: bytes) -> str:
    with pytest.raises(packing.NotPacked) as caught:
        packing.image(packed, offset, len(image), digest(image))
    return str(caught.value)


@pytest.mark.parametrize("kind", [SASS, PTX])
def test_what_is_packed_is_smaller_and_comes_back(kind: TargetKind) -> None:
    packed = packing.pack([IMAGE], kind)
    assert packing.unpack(packed, len(IMAGE)) == IMAGE and len(packed) < len(IMAGE) / 2
    assert packing.unpack(packing.pack([b"x"], kind), 1) == b"x"


def test_a_file_gives_each_of_its_images_and_all_of_them() -> None:
    assert len(BOTH) < len(PACKED) + 300, "the second image is found in the first"
    assert packing.image(BOTH, 0, len(IMAGE), digest(IMAGE)) == IMAGE
    assert packing.image(BOTH, len(IMAGE), len(OTHER), digest(OTHER)) == OTHER
    assert packing.unpack(BOTH, len(IMAGE) + len(OTHER)) == IMAGE + OTHER


def test_what_lies_behind_an_image_is_not_unpacked() -> None:
    """A stream whose end is broken still gives the first image: nobody has read so far."""
    noise = bytes(hash_byte for number in range(40_000) for hash_byte in hashlib.sha256(b"%d" % number).digest()[:8])
    packed = packing.pack([IMAGE, noise], SASS)
    assert packing.image(packed[: len(packed) // 2], 0, len(IMAGE), digest(IMAGE)) == IMAGE
    assert "ends early" in image_refusal(packed[: len(packed) // 2], len(IMAGE), noise)


def test_an_image_that_is_not_in_the_file_is_refused() -> None:
    end = len(IMAGE) + len(OTHER)
    for offset in (1, 500):  # fails if an image is taken from the wrong place, or in part
        assert image_refusal(BOTH, offset, IMAGE) == "checksum mismatch of the unpacked image"
    behind = f"unpacks to {end} bytes; the manifest says that the image ends at {{}}"
    assert image_refusal(BOTH, len(IMAGE) + 1, OTHER) == behind.format(end + 1)
    assert image_refusal(BOTH, 1 << 20, OTHER) == behind.format((1 << 20) + len(OTHER))
    assert "ends early" in image_refusal(BOTH[: len(BOTH) // 2], len(IMAGE), OTHER)
    assert "behind the end" in image_refusal(BOTH + b"x", len(IMAGE), OTHER)


def targets(text: str) -> list[GpuTarget]:
    return [GpuTarget.parse(word) for word in text.split()]


@pytest.mark.parametrize(
    ("given", "size", "files"),
    [
        ("sm_90", 1, ["sm_90"]),
        ("compute_90 sm_90", 1, ["sm_90", "compute_90"]),
        ("sm_75 sm_80 sm_86 sm_90 sm_120", 100_000, ["sm_90 sm_80 sm_86 sm_75 sm_120"]),
        ("sm_100 sm_90a sm_90 sm_130 sm_70 sm_100f", 1, ["sm_90 sm_90a sm_70 sm_100 sm_100f sm_130"]),
        ("compute_100 compute_80 compute_90 sm_80", 1, ["sm_80", "compute_90 compute_80 compute_100"]),
        ("sm_75 sm_80 sm_86 sm_90 sm_120", 800_000, ["sm_90", "sm_80 sm_86", "sm_75 sm_120"]),
        ("sm_80 sm_86 sm_89 sm_90", 800_000, ["sm_90", "sm_80 sm_86 sm_89"]),
    ],
)
def test_a_file_holds_what_a_first_call_has_time_for(given: str, size: int, files: list[str]) -> None:
    """Generations stay whole, and no image but those of its generation lies far behind the beginning."""
    assert packing.arrange(dict.fromkeys(targets(given), size)) == [targets(file) for file in files]


def test_the_name_of_a_file_stays_short_enough_for_a_file_system() -> None:
    many = targets(" ".join(f"sm_{number}{suffix}" for number in range(100, 130) for suffix in ("", "a", "f")))
    made = packing.arrange(dict.fromkeys(many, 1))
    assert sorted(map(str, itertools.chain(*made))) == sorted(map(str, many))
    assert max(len(device_path("a_family_with_a_very_long_name", file)) for file in made) < 200


def test_packing_again_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys\nfrom precast.core.capability import TargetKind\nfrom precast._builder.packing import pack\n"
        "print(pack([bytes.fromhex(sys.stdin.read())], TargetKind.SASS).hex(), end='')"
    )
    assert bytes.fromhex(spawn.python("-c", code, stdin=IMAGE.hex()).stdout) == PACKED


def test_the_bytes_begin_as_the_format_says() -> None:
    """The .xz format, 2.1.1: magic, then the check (1 is CRC32); 3.1.6: one LZMA2 filter (0x21), 4 MiB (0x14)."""
    assert PACKED[:8] == b"\xfd7zXZ\0\0\1"
    assert PACKED[14:17] == b"\x21\x01\x14"


@pytest.mark.parametrize(
    ("packed", "wanted", "said"),
    [
        (PACKED, len(IMAGE) - 1, f"unpacks to more than the {len(IMAGE) - 1} bytes in the manifest"),
        (PACKED, len(IMAGE) + 1, f"unpacks to {len(IMAGE)} bytes; the manifest says {len(IMAGE) + 1}"),
        (PACKED[:-1], len(IMAGE), f"ends early, after {len(IMAGE)} unpacked bytes"),
        (PACKED[:900], len(IMAGE), "ends early"),
        (b"", len(IMAGE), "ends early, after 0 unpacked bytes"),
        (PACKED + b"!", len(IMAGE), "1 bytes lie behind the end"),
        (PACKED + PACKED, 2 * len(IMAGE), f"{len(PACKED)} bytes lie behind the end"),
        (IMAGE, len(IMAGE), "not an .xz that precast packed: "),
        (lzma.compress(IMAGE, lzma.FORMAT_ALONE), len(IMAGE), "not an .xz that precast packed: "),
        (PACKED[:600] + b"\xff" + PACKED[601:], len(IMAGE), "not an .xz that precast packed: Corrupt input data"),
    ],
)
def test_anything_else_is_refused(packed: bytes, wanted: int, said: str) -> None:
    assert said in refusal(packed, wanted)


def test_a_stream_that_asks_for_much_memory_is_refused() -> None:
    greedy = lzma.compress(IMAGE, filters=[{"id": lzma.FILTER_LZMA2, "preset": 9}])  # a dictionary of 64 MiB
    assert refusal(greedy) == "not an .xz that precast packed: Memory usage limit exceeded"


def test_a_bomb_does_not_go_off() -> None:
    """32 MiB in 5 kB: what is unpacked of it is what the manifest allowed, in the memory of that."""
    code = (
        "import resource, sys\n"
        "from precast._builder import packing\n"
        "bomb = bytes.fromhex(sys.stdin.read())\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    packing.unpack(bomb, 1 << 20)\n"
        "except packing.NotPacked as error:\n    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    bomb = packing.pack([bytes(32 << 20)], SASS)
    assert len(bomb) < 6_000
    said, kib = spawn.python("-c", code, stdin=bomb.hex()).stdout.splitlines()
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
        packing.pack([IMAGE], SASS)


def test_reading_of_the_module_does_not_import_lzma() -> None:
    code = "import sys, precast._builder.packing, precast._load.loader; print({'lzma', '_lzma'} & set(sys.modules))"
    assert spawn.python("-c", code).stdout == "set()\n"


def images(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Stands in for NVRTC: each family's images hold their own names."""

    def build(family: Family, targets: tuple[GpuTarget, ...], *_: object) -> tuple[Artifact, ...]:
        made = []
        for target in targets:
            path = folder / device.file_name(family.name, target)
            path.write_bytes(path.name.encode() * 100)
            made.append(Artifact(path, hashlib.sha256(path.read_bytes()).hexdigest(), 0.0, True, "0" * 64))
        return tuple(made)

    monkeypatch.setattr(binaries, "build_images", build)


TARGETS = tuple(GpuTarget.parse(text) for text in ("sm_90", "compute_90"))


def test_each_image_is_packed_once_and_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images(monkeypatch, tmp_path)
    cache = Cache(tmp_path / "cache")
    made = binaries.make_device(TARGETS, ex.nvrtc("13.0.88"), Settings(), cache)
    assert len(made.device) == 2 * sum(family.device is not None for family in catalogue.FAMILIES)
    for file, path in made.device:
        packed = path.read_bytes()
        assert path.name == file.path.removeprefix("device/") and path.suffix == ".xz"
        assert (file.bytes, file.sha256) == (len(packed), hashlib.sha256(packed).hexdigest())
        image = Path(file.name).name.encode() * 100
        assert packing.image(packed, file.offset, file.content_bytes, digest(image)) == image
        assert file.content_sha256 == digest(image)
    monkeypatch.setattr(packing, "pack", lambda *_: pytest.fail("it is in the cache"))
    assert binaries.make_device(TARGETS, ex.nvrtc("13.0.88"), Settings(), cache).device == made.device


def test_a_python_without_lzma_packs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packing, "lzma_error", lambda: "No module named '_lzma'")
    with pytest.raises(KernelError, match=r"found   a Python without lzma .*_lzma.*\n  needed.*\n  fix"):
        binaries.make_device(TARGETS, ex.nvrtc("13.0.88"), Settings(), Cache(tmp_path / "cache"))
    monkeypatch.setattr(machine, "targets", lambda _: (ex.nvrtc("13.0.88"), TARGETS))
    monkeypatch.setattr(aot, "make_host", lambda *_: Made())
    assert aot._make(Settings(cuda_ext=True), checkout, Cache(tmp_path / "cache")).device == ()
    assert "this Python could not unpack it: No module named '_lzma'" in capsys.readouterr().err
