"""Damaged files of an installation: refused by name before they are loaded, and replaced by a build if that may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import fakes, spawn
from tests.load.conftest import Site

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

LOAD = "import precast; print(precast.load('adam_').host.kind)"
MAPPED = LOAD + "; print(open('/proc/self/maps').read())"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "bytes"),
    (flip, "checksum mismatch"),
    (empty, "0 bytes"),
    (Path.unlink, "missing"),
]


@pytest.mark.parametrize(("damage", "found"), DAMAGE)
def test_a_damaged_library_is_refused_by_name_and_not_mapped(
    wheel: Site, damage: Callable[[Path], None], found: str
) -> None:
    path = wheel.library
    damage(path)
    said = wheel.refusal(LOAD, env={"PRECAST_JIT": "aot"})
    assert "host/kernels-x86_64.so" in said and "damaged" in said and found in said
    assert "--force-reinstall" in said
    done = wheel.run(MAPPED)
    assert done.returncode == 0 and done.stdout.startswith("cache\n"), done.stderr
    assert str(path) not in done.stdout
    assert str(path) in done.stderr and found in done.stderr


def test_a_library_the_linker_refuses_is_named_with_the_linkers_words(wheel: Site, tmp_path: Path) -> None:
    foreign = spawn.library(tmp_path / "foreign.so", "int missing(); int use() { return missing(); }")
    fakes.write_installation(wheel.c_dir, foreign, families=("cpu_adam",))
    said = wheel.refusal(LOAD, env={"PRECAST_JIT": "aot"})
    assert "host/kernels-x86_64.so" in said and "the dynamic linker refuses it" in said
    done = wheel.run(LOAD)
    assert done.stdout == "cache\n" and "the dynamic linker refuses it" in done.stderr


@pytest.mark.parametrize("damage", [truncate, empty])
def test_a_damaged_manifest_is_refused_by_name_and_mode_jit_does_without(
    wheel: Site, damage: Callable[[Path], None]
) -> None:
    manifest = wheel.c_dir / "build_info.json"
    damage(manifest)
    said = wheel.refusal(LOAD)
    assert said.startswith("KernelIncompatible: ") and str(manifest) in said and "PRECAST_JIT=jit" in said
    assert wheel.ok(LOAD, env={"PRECAST_JIT": "jit"}) == "cache\n"


def test_a_bit_flipped_anywhere_in_the_manifest_never_loads_another_file(wheel: Site) -> None:
    """A hash with one digit changed is still a hash: then the file is what is refused."""
    manifest = wheel.c_dir / "build_info.json"
    text = manifest.read_text()
    digest = text.split('"sha256": "')[1][:64]
    manifest.write_text(text.replace(digest, ("0" if digest[0] != "0" else "1") + digest[1:]))
    assert "damaged" in wheel.refusal(LOAD, env={"PRECAST_JIT": "aot"})


def test_a_damaged_build_in_the_cache_is_made_again(pure: Site) -> None:
    assert pure.ok(LOAD) == "jit\n"
    (library,) = pure.cache.glob("v1/cpu_adam/*/cpu_adam.so")
    flip(library)
    done = pure.run(LOAD)
    assert done.stdout == "jit\n" and str(library.parent) in done.stderr
