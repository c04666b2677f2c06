"""The table of torch's names: its form, and that the torch of this environment has what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._builder import elf, torch_names
from precast.core.version import Release

EMPTY = "_ZN2at4_ops19empty_memory_format4callEv"
OLD, NEW = Release(2, 9), Release(2, 10)


def test_a_table_says_which_release_lacks_which_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {NEW: [EMPTY, "torch_new", "_ZN2at6native1fEv"], OLD: [EMPTY, "_ZN3c103oldESs"]}
    (tmp_path / "table.json").write_text(torch_names.to_json(names, {OLD: False, NEW: True}))
    monkeypatch.setattr(torch_names, "PATH", tmp_path / "table.json")
    torch_names._table.cache_clear()
    try:
        asked = [EMPTY, "torch_new", "_ZN2at6native1fEv", "_ZN3c103oldESs", "malloc"]
        assert torch_names.missing(asked, cxx11=None) == {OLD: ("torch_new",), NEW: ("_ZN3c103oldESs",)}
        # a name with a string of the other ABI is no evidence
        assert torch_names.missing(["_ZN3c103oldESs"], cxx11=False) == {OLD: (), NEW: ()}
        assert [one.cxx11 for one in torch_names.recorded()] == [False, True]
    finally:
        torch_names._table.cache_clear()


@pytest.mark.parametrize("name", ["_ZN2at6native3addEv", "_ZN2at4_ops5add_T10redispatchEv", "malloc", "_ZN3foo3barEv",
                                  "_ZN5torch6stable6TensorC1Ev"])  # fmt: skip
def test_other_names_are_not_judged(name: str) -> None:
    assert not torch_names.is_recorded(name)


# What xformers 0.0.28.post3, vllm-flash-attn 2.6.2 and sgl-kernel 0.3.16 need of libtorch_cuda.so.
OF_CUDA = (
    "_ZN2at17CUDAGeneratorImpl11device_typeEv",
    "_ZN2at4cuda26getCurrentDevicePropertiesEv",
    "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm",
    "aoti_torch_get_current_cuda_stream",
)


@pytest.mark.parametrize("name", OF_CUDA)
def test_the_names_of_torchs_cuda_libraries_are_recorded(name: str) -> None:
    assert torch_names.is_recorded(name)
    have = [release for release, names in torch_names.missing([name], cxx11=None).items() if not names]
    assert Release(2, 8) in have
    assert all(torch_names.missing([name + "x"], cxx11=None).values())


@pytest.mark.torch
def test_this_torch_has_what_the_table_says() -> None:
    """Fails if the table is of other builds, or a kind of name is judged that it does not have"""
    import torch

    release = Release(*map(int, torch.__version__.split(".")[:2]))
    if release not in {one.release for one in torch_names.recorded()}:
        release = torch_names.recorded()[-1].release
    folder = Path(torch.__file__).parent / "lib"
    exported = {
        name
        for library in ("libc10.so", "libtorch_python.so")
        for name in elf.read_shared_object((folder / library).read_bytes()).exported
        if torch_names.is_recorded(name)
    }
    cxx11 = torch.compiled_with_cxx11_abi()
    lacking = torch_names.missing(exported, cxx11=cxx11)[release]
    assert len(exported) > 500 and len(lacking) < len(exported) / 50, lacking[:9]
    assert torch_names.missing([EMPTY + "x", "torch_no_such"], cxx11=cxx11)[release] == (EMPTY + "x", "torch_no_such")
