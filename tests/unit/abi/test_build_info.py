from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precast.core import schemas
from precast.core.capability import CompiledCode, GpuTarget
from precast.core.manifest import (
    READERS,
    SCHEMA,
    BuildInfo,
    BuildMode,
    DeviceFile,
    ManifestError,
    NewerManifest,
    by_file,
    device_path,
    host_path,
    image_name,
)
from precast.core.torch_abi import Exact, parse_torch_abi
from precast.core.version import Label, Release
from tests.kit import hosts as ex

INFO = ex.build_info("sm_90 compute_90")


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(INFO.to_json())
    return loaded


def test_a_manifest_comes_back() -> None:
    assert BuildInfo.from_json(INFO.to_json()) == INFO


def test_the_rarer_values_come_back() -> None:
    file = ex.host_file(
        abi=f"torch-2.10-cxx1-git{'a' * 40}", path="host/x.so", python="cp312", cuda_major=13, debug=True, needed=(),
        compiled=tuple(map(CompiledCode.parse, ("sm_90a:nvcc:13.0.88", "sm_103:nvcc:13.2"))),
    )  # fmt: skip
    info = BuildInfo("1.0.dev3", Label(""), BuildMode.MACHINE, None, True, "f" * 64, host=(file,))
    assert BuildInfo.from_json(info.to_json()) == info
    pure = BuildInfo("1.0", Label(""), BuildMode.PURE, None, False, "f" * 64)
    assert BuildInfo.from_json(pure.to_json()) == pure


def test_the_text_is_canonical() -> None:
    text = INFO.to_json()
    assert text.endswith("}\n")
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert json.loads(text)["schema"] == SCHEMA


def test_names_of_files() -> None:
    assert host_path(parse_torch_abi("torch-table-1"), "x86_64") == "host/kernels-x86_64.so"
    assert host_path(Exact(Release(2, 6), cxx11=False), "x86_64") == "host/torch-2.6-cxx0.so"
    hopper, ampere, ptx = map(GpuTarget.parse, ("sm_90a", "sm_80", "compute_90"))
    assert device_path("rms_norm", [hopper]) == "device/rms_norm.sm_90a.cubin.xz"
    assert device_path("rms_norm", [hopper, ampere]) == "device/rms_norm.sm_90a+sm_80.cubin.xz"
    assert device_path("rms_norm", [ptx]) == "device/rms_norm.compute_90.ptx.xz"
    assert ex.device_file("sm_80").name == image_name("rms_norm", ampere) == "device/rms_norm.sm_80.cubin"
    assert ex.host_file().name == ex.host_file().path


def set_at(*path: str | int) -> Callable[[dict[str, Any], Any], None]:
    def change(root: dict[str, Any], value: Any) -> None:
        target: Any = root
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


BAD_VALUES = [
    (("schema",), 1, f"$.schema: needed 4 to {SCHEMA}, found 1, older than the first release"),
    (("schema",), 3, f"$.schema: needed 4 to {SCHEMA}, found 3, older than the first release"),
    (("schema",), 99, f"$.schema: needed 4 to {SCHEMA}, found 99, for precast{READERS}"),
    (("readers",), ">=0.0", f"$.readers: needed '{READERS}' in schema {SCHEMA}"),
    (("schema",), "1", "$.schema: needed a whole number, found a string"),
    (("schema",), True, "$.schema: needed a whole number, found a boolean"),
    (("version",), "1.0+cu130", "$.version"),
    (("version",), None, "$.version: needed a string, found null"),
    (("label",), "cuda", "$.label: not a label"),
    (("label",), "", "$.label"),
    (("mode",), "fast", "$.mode"),
    (("commit",), "main", "$.commit"),
    (("dirty",), 0, "$.dirty: needed true or false, found a number"),
    (("source_digest",), "0" * 63, "$.source_digest"),
    (("index_url",), "https://host/$(reboot)", "$.index_url: needed the URL of an index"),
    (("index_url",), "ftp://host", "$.index_url"),
    (("compilers",), {}, "$.compilers: needed a list, found an object"),
    (("compilers", 0), "g++", "$.compilers[0]: needed an object, found a string"),
    (("host",), None, "$.host: needed a list, found null"),
    (("host", 0, "sha256"), "0" * 64 + "0", "$.host[0].sha256"),
    (("host", 0, "sha256"), "G" + "0" * 63, "$.host[0].sha256"),
    (("host", 0, "sha256"), "A" * 64, "$.host[0].sha256"),
    (("host", 0, "bytes"), -1, "$.host[0].bytes: needed 0 to 4294967296, found -1"),
    (("host", 0, "bytes"), 1.5, "$.host[0].bytes: needed a whole number"),
    (("host", 0, "path"), "/etc/passwd", "$.host[0].path: needed 'host/<file name>'"),
    (("host", 0, "path"), "host/../../x.so", "$.host[0].path"),
    (("host", 0, "path"), "host/..", "$.host[0].path"),
    (("host", 0, "path"), "..", "$.host[0].path"),
    (("host", 0, "path"), "../..", "$.host[0].path"),
    (("host", 0, "path"), "../lib/../x.so", "$.host[0].path"),
    (("host", 0, "path"), "..//x.so", "$.host[0].path"),
    (("host", 0, "path"), "../.hidden/x.so", "$.host[0].path"),
    (("device", 0, "path"), "../x.cubin.xz", "$.device[0].path"),
    (("host", 0, "path"), "host\\x.so", "$.host[0].path"),
    (("host", 0, "path"), "host/x\\y.so", "$.host[0].path"),
    (("host", 0, "path"), "host/x\0.so", "$.host[0].path: needed printable text"),
    (("host", 0, "path"), "host/x\n.so", "$.host[0].path: needed printable text"),
    (("host", 0, "path"), "host/\udcff.so", "$.host[0].path: needed printable text"),
    (("host", 0, "path"), "host/", "$.host[0].path"),
    (("host", 0, "path"), "x.so", "$.host[0].path"),
    (("host", 0, "path"), "host/.hidden.so", "$.host[0].path"),
    (("host", 0, "path"), "host//x.so", "$.host[0].path"),
    (("host", 0, "path"), "device/rms_norm.sm_90.cubin.xz", "$.host[0].path"),
    (("host", 0, "abi"), "torch-2.6", "$.host[0].abi: not a torch ABI"),
    (("host", 0, "machine"), "x86-64", "$.host[0].machine"),
    (("host", 0, "python"), "py3", "$.host[0].python"),
    (("host", 0, "cuda_major"), "13", "$.host[0].cuda_major"),
    (("host", 0, "needed"), [""], "$.host[0].needed[0]: needed printable text"),
    (("host", 0, "needed"), ["libc.so.6", "libc.so.6"], "$.host[0].needed: the item 'libc.so.6' is listed twice"),
    (("host", 0, "glibc"), "2", "$.host[0].glibc: not a release"),
    (("host", 0, "glibcxx"), "GLIBCXX_3.4", "$.host[0].glibcxx: not a dotted version"),
    (("host", 0, "cpu_levels"), ["AVX2"], "$.host[0].cpu_levels"),
    (("host", 0, "families"), [1], "$.host[0].families[0]: needed a string, found a number"),
    (("host", 0, "debug"), "no", "$.host[0].debug"),
    (("host", 0, "links"), ["libx.so"], "$.host[0].links[0]: needed an object, found a string"),
    (("host", 0, "links"), [{"soname": "x"}], "$.host[0].links[0].path: missing"),
    (("host", 0, "links"), [{"soname": "x", "path": "host/no.so"}], "$.host: 'host/"),
    (("host", 0, "links"), [{"soname": "x", "path": document()["host"][0]["path"]}], "$.host: 'host/"),
    (("host", 0, "kind"), "linking", "$.host[0].kind"),
    (("host", 0, "compiled"), ["sm_90:13.0.88"], "$.host[0].compiled[0]: not compiled code"),
    (("host", 0, "compiled"), ["sm_90:gcc:13.0.88"], "$.host[0].compiled[0]: not compiled code"),
    (("host", 0, "compiled"), ["sm_90:nvcc:V13"], "$.host[0].compiled[0]: not a dotted version"),
    (("device", 1, "path"), "host/rms_norm.sm_90.cubin", "$.device[1].path"),
    (("device", 1, "family"), "", "$.device[1].family"),
    (("device", 1, "target"), "sm90", "$.device[1].target: not a GPU target"),
    (("device", 1, "nvrtc"), "thirteen", "$.device[1].nvrtc"),
    (("device", 1, "content_bytes"), -1, "$.device[1].content_bytes: needed 0 to 16777216, found -1"),
    (("device", 1, "content_bytes"), 1 << 40, "$.device[1].content_bytes: needed 0 to 16777216, found 1099511627776"),
    (("device", 1, "content_sha256"), "0", "$.device[1].content_sha256: needed 64 lower-case"),
    (("device", 1, "offset"), -1, "$.device[1].offset: needed 0 to 16777216, found -1"),
    (("device", 1, "offset"), 1 << 24, "$.device[1].offset: needed an image within 16777216 bytes, found 167"),
    (("device", 1, "offset"), 1, "$.device: 'device/rms_norm.compute_90.ptx' needed at offset 0 of"),
    (("device", 1, "min_driver"), "13000", "$.device[1].min_driver"),
    (("device", 1, "min_driver"), 13000, "$.device[1].min_driver: needed a string, found a number"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD_VALUES, ids=lambda x: repr(x)[:48])
def test_a_bad_value_is_refused_with_its_place(path: tuple[str | int, ...], value: Any, message: str) -> None:
    changed = document()
    set_at(*path)(changed, value)
    with pytest.raises(ManifestError) as caught:
        BuildInfo.from_json(json.dumps(changed))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("schema", sorted(schemas.UPGRADES))
def test_a_manifest_of_every_schema_since_the_first_release_is_read(schema: int) -> None:
    """A new schema leaves a manifest of the last one here, as that wrote it."""
    text = (Path(__file__).parent / "manifests" / f"schema-{schema}.json").read_text()
    assert json.loads(text)["schema"] == schema
    info = BuildInfo.from_json(text)
    assert BuildInfo.from_json(info.to_json()) == info and info.host and info.device
    assert json.loads(info.to_json())["schema"] == SCHEMA
    # fails if an upgrade lets keys through, or writes over those, that its schema did not have
    newest, older = json.loads(info.to_json()), json.loads(text)
    for key in {*newest} - {*older} | {"colour"}:
        with pytest.raises(ManifestError, match=f"unknown keys \\['{key}'\\]"):
            BuildInfo.from_json(json.dumps(older | {key: newest.get(key)}))


def test_each_schema_leads_to_the_next() -> None:
    assert sorted(schemas.UPGRADES) == list(range(4, SCHEMA))
    assert schemas.is_readers(READERS)


@pytest.mark.parametrize("readers", [">=1.1", ">=1.1; reboot", None, 7])
def test_a_newer_manifest_says_which_precast_reads_it(readers: object) -> None:
    # fails if a text that a shell would run gets into the command that the error prints
    newer = {"schema": SCHEMA + 1, "readers": readers, "whatever": 1}
    with pytest.raises(NewerManifest) as caught:
        BuildInfo.from_json(json.dumps(newer))
    assert caught.value.readers == (">=1.1" if readers == ">=1.1" else "")


@pytest.mark.parametrize("path", [(), ("host", 0), ("device", 0), ("compilers", 0)])
def test_unknown_and_missing_keys_are_refused(path: tuple[str | int, ...]) -> None:
    def at(root: Any) -> dict[str, Any]:
        for key in path:
            root = root[key]
        found: dict[str, Any] = root
        return found

    changed = document()
    at(changed)["colour"] = "red"
    with pytest.raises(ManifestError, match="unknown keys \\['colour'\\]"):
        BuildInfo.from_json(json.dumps(changed))
    for key in at(document()):
        changed = document()
        del at(changed)[key]
        with pytest.raises(ManifestError, match=f"\\.{key}: missing"):
            BuildInfo.from_json(json.dumps(changed))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "$: not JSON"),
        ("{", "$: not JSON"),
        ("[]", "$: needed an object, found a list"),
        ("null", "$: needed an object, found null"),
        ('{"schema": 1, "schema": 1}', "$: the key 'schema' is given twice"),
        ('{"schema": NaN}', "$: NaN is not a JSON number"),
        ('{"schema": 1' + "0" * 5000 + "}", "$: not JSON"),
        ("[" * 100_000, "$: not a manifest: nested too deeply"),
        ("\ufeff{}", "$: not JSON"),
    ],
    ids=lambda x: x[:20],
)
def test_what_is_not_an_object_is_refused(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        BuildInfo.from_json(text)
    assert str(caught.value).startswith(message)


def test_every_truncation_is_refused() -> None:
    text = INFO.to_json().rstrip()
    for end in range(0, len(text), 7):
        with pytest.raises(ManifestError):
            BuildInfo.from_json(text[:end])


def refused(info: BuildInfo, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        info.to_json()


def test_the_build_cannot_write_what_the_loader_would_refuse() -> None:
    file, image = INFO.host[0], INFO.device[0]
    # fails if to_json() writes one of these, or gives another reason
    refused(replace(INFO, host=(file, file)), "path 'host/kernels-x86_64.so' is listed twice")
    refused(replace(INFO, device=(image, replace(image, path="device/again.cubin.xz"))), "device code 'rms_norm sm_90'")
    other = replace(image, family="softmax")
    refused(replace(INFO, device=(image, other)), f"the entries of '{image.path}' differ in family")
    refused(replace(INFO, mode=BuildMode.PURE), "a pure build lists no files")
    refused(replace(INFO, mode=BuildMode.PURE, host=()), "a pure build lists no files")
    refused(replace(INFO, mode=BuildMode.PURE, device=()), "a pure build lists no files")
    refused(replace(INFO, label=Label("cpu")), "has no device code")
    refused(replace(INFO, host=(replace(file, path="/tmp/x.so"),)), "path")
    refused(replace(INFO, host=(replace(file, sha256="?"),)), "sha256")
    refused(replace(INFO, host=[file]), "does not survive")  # type: ignore[arg-type]


def sharing(*images: DeviceFile) -> BuildInfo:
    """A manifest whose images are all in the file of the first."""
    about = {"path": images[0].path, "sha256": images[0].sha256, "bytes": images[0].bytes}
    return replace(INFO, device=tuple(replace(image, **about) for image in images))  # type: ignore[arg-type]


def test_images_of_one_file_follow_each_other() -> None:
    first, second = ex.device_file("sm_90"), ex.device_file("sm_80")
    good = sharing(first, replace(second, offset=first.end))
    assert BuildInfo.from_json(good.to_json()) == good
    assert list(good.files) == [good.host[0].path, first.path] and by_file(good.device)[first.path] == [*good.device]
    # fails if a manifest may name an image that overlaps another, lies behind a gap, or comes in another order
    for offset in (0, first.end - 1, first.end + 1):
        wanted = f"'device/rms_norm.sm_80.cubin' needed at offset {first.end} of '.*', found {offset}"
        refused(sharing(first, replace(second, offset=offset)), wanted)
    refused(sharing(replace(second, offset=first.end), first), "'device/rms_norm.sm_80.cubin' needed at offset 0 of")


@pytest.mark.parametrize(
    "differs", [{"sha256": "a" * 64}, {"bytes": 1}, {"family": "softmax"}, {"target": "compute_80"}]
)
def test_images_of_one_file_agree_about_it(differs: dict[str, Any]) -> None:
    first, second = ex.device_file("sm_90"), ex.device_file("sm_80")
    (one, other) = sharing(first, replace(second, offset=first.end)).device
    if "target" in differs:
        differs = {"target": GpuTarget.parse(differs["target"])}
    # fails if to_json() writes entries that differ
    refused(replace(INFO, device=(one, replace(other, **differs))), f"the entries of '{first.path}' differ")
