"""Ways to lie in a wheel. Each change is a function of its files; ``tampered`` writes the wheel that results."""

from __future__ import annotations

import hashlib
import json
import lzma
import zipfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from precast._builder import packing
from precast._builder.wheel_file import write_wheel
from precast.core.capability import TargetKind
from tools.shared.wheel import Wheel, read_wheel

HOST = "precast/_C/host/kernels-x86_64.so"
PTX = "precast/_C/device/rms_norm.compute_90.ptx.xz"  # alone in its file
MANIFEST = "precast/_C/build_info.json"
SBOM = "sboms/precast.cdx.json"  # below the folder of the metadata, as the three are
METADATA, WHEEL, LICENCE = "METADATA", "WHEEL", "licenses/LICENSE"

Files = dict[str, bytes]
Change = Callable[[Files], Any]


def tampered(wheel: Path, folder: Path, change: Change, *, honest_record: bool = True) -> Path:
    """A copy of a wheel with its files changed; ``honest_record`` writes the RECORD such a wheel would have."""
    original = read_wheel(wheel)
    files = dict(original.files)
    change(files)
    copy = folder / wheel.name
    if honest_record:
        write_wheel(copy, original.dist_info, files, epoch_of(original))
        return copy
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return copy


def epoch_of(wheel: Wheel) -> int:
    """The moment of a wheel, which its bill of materials names too."""
    return int(datetime(*wheel.entries[0].moment, tzinfo=timezone.utc).timestamp())


def set_in(document: Any, path: str, value: object) -> None:
    """Change one entry of a document, named as ``host.0.glibc``."""
    *outer, key = path.split(".")
    for part in outer:
        document = document[int(part) if part.isdigit() else part]
    document[key] = value


def named(files: Files, name: str) -> str:
    """The whole path of a file of the metadata; its folder carries version and label."""
    (found,) = (path for path in files if path.endswith(f".dist-info/{name}"))
    return found


def edit(path: str, value: object) -> Change:
    """Change one entry of the manifest."""

    def change(files: Files) -> None:
        document = json.loads(files[MANIFEST])
        set_in(document, path, value)
        files[MANIFEST] = json.dumps(document).encode()

    return change


def edit_sbom(how: Callable[[Any], Any]) -> Change:
    """Change the bill of materials in place."""

    def change(files: Files) -> None:
        name = named(files, SBOM)
        document = json.loads(files[name])
        how(document)
        files[name] = json.dumps(document).encode()

    return change


def replace(name: str, data: Callable[[bytes], bytes]) -> Change:
    """Change a file, and give the manifest and the bill of materials its new hash: a lie with every hash in order."""

    def change(files: Files) -> None:
        old = hashlib.sha256(files[name]).hexdigest()
        files[name] = data(files[name])
        new = hashlib.sha256(files[name]).hexdigest()
        document = json.loads(files[MANIFEST].replace(old.encode(), new.encode()))
        for entry in (*document["host"], *document["device"]):
            if f"precast/_C/{entry['path']}" == name:
                entry["bytes"] = len(files[name])
        files[MANIFEST] = json.dumps(document).encode()
        sbom = named(files, SBOM)
        files[sbom] = files[sbom].replace(old.encode(), new.encode())

    return change


def repack(target: str, data: Callable[[bytes], bytes], family: str = "rms_norm") -> Change:
    """Change one image inside its file; everything that speaks of the file and its content stays true."""

    def change(files: Files) -> None:
        path = file_of(files, target, family)
        content = lzma.decompress(files[path])
        entries = [entry for entry in json.loads(files[MANIFEST])["device"] if f"precast/_C/{entry['path']}" == path]
        images = []
        for entry in entries:
            image = content[entry["offset"] :][: entry["content_bytes"]]
            images.append(data(image) if entry["target"] == target else image)
        kind = TargetKind.PTX if target.startswith("compute") else TargetKind.SASS
        replace(path, lambda _: packing.pack(images, kind))(files)
        document, offset = json.loads(files[MANIFEST]), 0
        for entry, image in zip(of_file(document, path), images, strict=True):
            digest = hashlib.sha256(image).hexdigest()
            entry |= {"offset": offset, "content_bytes": len(image), "content_sha256": digest}
            offset += len(image)
        files[MANIFEST] = json.dumps(document).encode()

    return change


def of_file(document: Any, path: str) -> list[Any]:
    """The entries of a manifest that are in one file."""
    return [entry for entry in document["device"] if f"precast/_C/{entry['path']}" == path]


def file_of(files: Files, target: str, family: str = "rms_norm") -> str:
    """The path in a wheel of the file with a family's image for a target."""
    (path,) = (
        f"precast/_C/{entry['path']}"
        for entry in json.loads(files[MANIFEST])["device"]
        if (entry["family"], entry["target"]) == (family, target)
    )
    return path


def in_file_of(target: str, change: Callable[[str], Change]) -> Change:
    """A change of the file that holds an image."""
    return lambda files: change(file_of(files, target))(files)


def edit_image(target: str, **values: object) -> Change:
    """Change the manifest's entry of one image."""

    def change(files: Files) -> None:
        document = json.loads(files[MANIFEST])
        for entry in document["device"]:
            if (entry["family"], entry["target"]) == ("rms_norm", target):
                entry |= values
        files[MANIFEST] = json.dumps(document).encode()

    return change


def patched(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def patch(data: bytes) -> bytes:
        assert old in data and len(old) == len(new)
        return data.replace(old, new)

    return patch


def at(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :]


def spilling(cubin: bytes) -> bytes:
    """The first kernel with a frame of 64 bytes: an entry of .nv.info with its form, attribute, size, symbol, frame."""
    frame = cubin.index(b"\x04\x11\x08\x00") + 8
    return cubin[:frame] + b"\x40" + cubin[frame + 1 :]


def drop_device(target: str) -> Change:
    """A manifest that is silent about a target. Its images stay in files that hold the images of other targets too."""

    def change(files: Files) -> None:
        document = json.loads(files[MANIFEST])
        document["device"] = [entry for entry in document["device"] if entry["target"] != target]
        files[MANIFEST] = json.dumps(document).encode()

    return change


def drop_components(names: list[str]) -> Change:
    """A bill of materials that keeps quiet about some components."""

    def drop(document: Any) -> None:
        document["components"] = [entry for entry in document["components"] if entry["name"] not in names]

    return edit_sbom(drop)


def metadata(old: str, new: str, file: str = METADATA) -> Change:
    """Change the text of METADATA or WHEEL."""

    def change(files: Files) -> None:
        name = named(files, file)
        assert old.encode() in files[name], files[name][:600]
        files[name] = files[name].replace(old.encode(), new.encode())

    return change


def without(file: str) -> Change:
    """A file of the metadata gone."""
    return lambda files: files.pop(named(files, file))
