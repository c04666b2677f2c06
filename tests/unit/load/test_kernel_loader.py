"""Registries of their own, validated registration, priorities, and one object however it is asked for."""

from __future__ import annotations

import platform
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast import base_extension, kernel_loader
from precast._builder import catalogue
from precast.compat import flash_attention, loaders
from precast.errors import KernelUnavailable
from precast.extension import CppExtension, DeviceExtension, Extension, TorchExtension, backends
from precast.extension.loader import _check_interface
from precast.kernel_loader import CPUAdamLoader, KernelLoader, RMSNormLoader


def make(name: str, *, priority: int = 1, available: bool = True, refusal: Exception | None = None) -> type[Extension]:
    """An extension that loads a new object each time it is asked."""

    class Made(Extension):
        loads = 0

        def __init__(self) -> None:
            super().__init__(name, support_aot=False, support_jit=False, priority=priority)

        def is_available(self) -> bool:
            return available

        def assert_compatible(self) -> None:
            if refusal is not None:
                raise refusal

        def build_aot(self) -> Any:
            raise NotImplementedError

        def build_jit(self) -> Any:
            return self.load()

        def load(self) -> Any:
            type(self).loads += 1
            return [name]

    return Made


@pytest.fixture
def loader() -> Iterator[type[KernelLoader]]:
    class Loader(KernelLoader):
        pass

    yield Loader
    assert KernelLoader.REGISTRY == [], "a registration leaked into the base"


def test_registrations_stay_with_their_class(loader: type[KernelLoader]) -> None:
    class Other(KernelLoader):
        pass

    loader.register_extension(make("one"))

    class Child(loader):  # type: ignore[misc,valid-type]
        pass

    Child.register_extension(make("two"))
    assert (loader.names(), Other.names(), Child.names()) == (("one",), (), ("one", "two"))


def test_what_is_no_extension_or_is_there_already_is_refused(loader: type[KernelLoader]) -> None:
    loader.register_extension(make("one"))
    with pytest.raises(ValueError, match=r"already has an extension 'one'; unregister_extension\('one'\)"):
        loader.register_extension(make("one"))
    with pytest.raises(TypeError, match="is not a class; needed a subclass"):
        loader.register_extension(make("two")())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int is not an extension: it lacks name, priority"):
        loader.register_extension(int)  # type: ignore[arg-type]

    class Half(Extension):
        def load(self) -> Any:
            return None

    with pytest.raises(TypeError, match="Half does not define assert_compatible, build_aot, build_jit, is_available"):
        loader.register_extension(Half)  # type: ignore[arg-type]
    assert loader.names() == ("one",)


def test_the_highest_priority_that_can_be_loaded_wins_and_ties_go_by_registration(loader: type[KernelLoader]) -> None:
    for extension in (
        make("low", priority=0),
        make("first"),
        make("second"),
        make("absent", priority=9, available=False),
        make("refused", priority=8, refusal=KernelUnavailable("no")),
        make("asserting", priority=7, refusal=AssertionError("as older classes do")),
    ):
        loader.register_extension(extension)
    assert loader().load() == ["first"]


def test_loading_is_remembered_until_the_registry_changes(loader: type[KernelLoader]) -> None:
    loader.register_extension(make("one"))
    kernels = loader().load()
    assert loader().load() is kernels and loader().load(ext_name="one") is kernels
    loader.register_extension(make("better", priority=2))
    assert loader().load() == ["better"]
    loader.unregister_extension("better")
    assert loader().load() == ["one"]


def test_an_extension_loaded_by_name_is_the_one_found_by_priority(loader: type[KernelLoader]) -> None:
    loader.register_extension(make("one"))
    named = loader().load(ext_name="one")
    assert loader().load() is named


def test_unregistering_takes_name_or_class_and_refuses_what_is_not_there(loader: type[KernelLoader]) -> None:
    one = make("one")
    loader.register_extension(one)
    loader.unregister_extension(one)
    assert loader.names() == ()
    with pytest.raises(ValueError, match="has no extension 'one'; it has none"):
        loader.unregister_extension("one")


def test_a_named_extension_goes_through_the_same_checks(loader: type[KernelLoader]) -> None:
    loader.register_extension(make("refused", refusal=KernelUnavailable("not here")))
    with pytest.raises(KernelUnavailable, match="not here"):
        loader().load(ext_name="refused")


def test_a_typo_lists_the_names_and_suggests_one() -> None:
    with pytest.raises(KernelUnavailable) as caught:
        CPUAdamLoader().load(ext_name="cpu_adam_x68")
    assert "one of cpu_adam_x86, cpu_adam_arm" in str(caught.value)
    assert "CPUAdamLoader().load(ext_name='cpu_adam_x86')" in str(caught.value)


def test_when_nothing_can_be_loaded_every_extension_says_why(loader: type[KernelLoader]) -> None:
    loader.register_extension(make("absent", available=False))
    loader.register_extension(make("refused", refusal=KernelUnavailable("first line\nsecond line")))
    with pytest.raises(KernelUnavailable) as caught:
        loader().load()
    assert str(caught.value).splitlines() == [
        "none of the extensions of Loader can be loaded here",
        "  absent: its hardware is not here",
        "  refused: first line",
        "      second line",
        "  found   2 extensions, each with its reason above",
        "  needed  one extension that can be loaded on this machine",
        "  fix     1) run a fix above",
    ]
    assert isinstance(caught.value.__cause__, KernelUnavailable)


def test_a_loader_without_extensions_says_how_to_register_one(loader: type[KernelLoader]) -> None:
    with pytest.raises(KernelUnavailable) as caught:
        loader().load()
    assert caught.value.found == "no registered extension"
    assert str(caught.value.fix).startswith("Loader.register_extension(")


def test_eight_threads_get_one_object(loader: type[KernelLoader]) -> None:
    extension = make("one")
    loader.register_extension(extension)
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(id(loader().load()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and len(set(seen)) == 1 and extension.loads == 1  # type: ignore[attr-defined]


def test_the_wrong_machine_is_one_clear_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(KernelUnavailable) as caught:
        CPUAdamLoader().load(ext_name="cpu_adam_arm")
    assert str(caught.value).splitlines()[0] == "cpu_adam_arm cannot be loaded here: it is for aarch64 machines"
    assert "found   x86_64" in str(caught.value)


class OlderSpelling(Extension):
    """Written for the older interface: the other spelling of both questions."""

    def __init__(self) -> None:
        super().__init__("older", support_aot=False, support_jit=True)

    def is_hardware_available(self) -> bool:
        return True

    def assert_hardware_compatible(self) -> None:
        raise AssertionError("never compatible")

    def build_aot(self) -> Any:
        raise NotImplementedError

    def build_jit(self) -> Any:
        return None

    def load(self) -> Any:
        return self.build_jit()


def test_either_spelling_may_be_written_and_both_may_be_called(loader: type[KernelLoader]) -> None:
    older = OlderSpelling()
    assert older.is_available() and older.is_hardware_available()
    with pytest.raises(AssertionError, match="never compatible"):
        older.assert_compatible()
    newer = make("newer", available=False)()
    assert not newer.is_hardware_available()
    newer.assert_hardware_compatible()
    loader.register_extension(OlderSpelling)
    with pytest.raises(KernelUnavailable, match="older: never compatible"):
        loader().load()


def test_the_older_import_path_gives_the_same_class() -> None:
    assert base_extension._Extension is base_extension.Extension is Extension
    assert base_extension._CppExtension is CppExtension and issubclass(base_extension._CudaExtension, CppExtension)


def test_the_built_in_registries() -> None:
    assert CPUAdamLoader.names() == ("cpu_adam_x86", "cpu_adam_arm", "cpu_adam_torch")
    assert RMSNormLoader.names() == ("rms_norm_cuda", "rms_norm_cpu", "rms_norm_torch")
    for loader in kernel_loader.loaders():
        assert loader.REGISTRY, loader
        for cls in loader.REGISTRY:
            _check_interface(KernelLoader, cls)
    public = {name for name in kernel_loader.__all__ if name.endswith("Loader")} - {"KernelLoader"}
    assert public == {loader.__name__ for loader in kernel_loader.loaders()}, "every loader has its older import path"


def test_each_family_is_examined_once_for_a_device_with_and_without_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def examined() -> list[tuple[str, str, str | None]]:
        return [(family.name, one.device, one.machine) for one in loaders.with_kernels() for family in one.families]

    wanted = {(family.name, device) for family in catalogue.FAMILIES for device in family.devices}
    assert {given[:2] for given in examined()} == wanted and len(set(examined())) == len(examined())
    others = {one: made for one, made in loaders._BUILT_IN.items() if one is not loaders.SoftmaxLoader}
    monkeypatch.setattr(loaders, "_BUILT_IN", others)  # an item that is put back would come last
    assert {given[:2] for given in examined()} == wanted and len(set(examined())) == len(examined())
    assert "softmax_backward_cuda" in {one.extension_name for one in loaders.with_kernels()}


def test_everything_built_in_is_made_of_the_public_classes() -> None:
    kinds = {"cubin": DeviceExtension, "cpp": CppExtension, "torch": TorchExtension}
    for made in (extension for loader in kernel_loader.loaders() for extension in loader.extensions()):
        kind = Extension if isinstance(made, flash_attention.AttentionExtension) else kinds[made.backend]
        assert isinstance(made, kind), made
        if isinstance(made, (CppExtension, DeviceExtension)):
            assert made.support_aot and made.support_jit
            assert all(Path(source).is_file() for source in made.sources_files())
            assert all(Path(folder).is_dir() for folder in made.include_dirs())
    assert CPUAdamLoader.extensions()[0].cxx_flags()  # type: ignore[attr-defined]


@pytest.mark.torch
def test_plain_torch_comes_last_and_not_where_a_kernel_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader(RMSNormLoader):
        pass

    for name in ("rms_norm_cuda", "rms_norm_cpu"):
        Loader.unregister_extension(name)
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    assert Loader.candidates()[-1].name == "rms_norm_torch" and Loader.candidates()[-1].state == "ready"
    for mode in ("aot", "jit"):
        monkeypatch.setenv("PRECAST_JIT", mode)
        with pytest.raises(KernelUnavailable, match=f"it is not a kernel, and PRECAST_JIT={mode} asks for one"):
            Loader().load()
        Loader._memory.clear()
    assert Loader().load(ext_name="rms_norm_torch").source.kind == "torch"


@pytest.mark.torch
def test_accelerators_of_other_makers_get_no_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "gpu_kinds", lambda: frozenset({"rocm"}))
    states = {one.name: one.state for one in RMSNormLoader.candidates()}
    assert states == {"rms_norm_cuda": "absent", "rms_norm_cpu": "absent", "rms_norm_torch": "ready"}
    assert {one.state for one in CPUAdamLoader.candidates() if one.name == "cpu_adam_torch"} == {"ready"}
    assert CPUAdamLoader.extensions()[0].is_available() == (platform.machine() == "x86_64"), "it is for the CPU anyway"


def test_a_triton_extension_is_for_the_gpus_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernels(base_extension._TritonExtension):
        devices = ("rocm", "xpu")

        def __init__(self) -> None:
            super().__init__("kernels_triton", priority=2)

        def build_jit(self) -> Any:
            return ["triton"]

    made = Kernels()
    assert (made.priority, made.support_aot, made.support_jit) == (2, False, True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backends, "has_package", lambda name: name == "triton")
    for kinds, here in (({"cuda"}, False), ({"xpu"}, True)):
        monkeypatch.setattr(backends, "gpu_kinds", lambda kinds=kinds: frozenset(kinds))
        assert made.is_available() == made.is_hardware_available() == made.is_hardware_compatible() == here
    assert made.load() == ["triton"]
    monkeypatch.setattr(backends, "gpu_kinds", frozenset)
    with pytest.raises(KernelUnavailable, match="this extension is for rocm, xpu"):
        made.load()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert made.load() == ["triton"]
    monkeypatch.setattr(backends, "has_package", lambda name: False)
    with pytest.raises(KernelUnavailable, match=" triton"):
        made.assert_compatible()
    with pytest.raises(KernelUnavailable, match="support_aot is False"):
        made.build_aot()


def test_an_extension_of_a_package_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "has_package", lambda name: name == "torch")
    reasons = {one.name: one.reason for one in kernel_loader.FlashAttentionLoader.candidates()}
    assert reasons["flash_attention_npu"] == "torch_npu is not installed"
    assert reasons["flash_attention_dao_cuda"] == "flash-attn is not installed, or there is no NVIDIA GPU"
    with pytest.raises(KernelUnavailable, match="no package torch_npu"):
        kernel_loader.FlashAttentionLoader().load(ext_name="flash_attention_npu")


@pytest.mark.torch
def test_attention_on_ascend_is_handed_to_torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the package: what it is called with, and what a mask becomes."""
    import torch

    calls: list[dict[str, Any]] = []

    def npu_fusion_attention(q: Any, k: Any, v: Any, heads: int, layout: str, **how: Any) -> list[Any]:
        calls.append({"heads": heads, "layout": layout, **how})
        return [q + 1]

    package = types.ModuleType("torch_npu")
    package.npu_fusion_attention = npu_fusion_attention  # type: ignore[attr-defined]
    package.__file__, package.__version__ = "/site/torch_npu/__init__.py", "2.13"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    monkeypatch.setattr(backends, "has_package", lambda name: True)
    attention = flash_attention.FlashAttentionNpuExtension().load()
    assert attention.source.kind == "package" and "torch_npu 2.13" in attention.source.detail
    q = torch.zeros(2, 3, 4, 16)
    keep = torch.eye(4).bool()
    assert torch.equal(attention(q, q, q, dropout_p=0.25, attention_mask=keep), q + 1)
    added = torch.zeros(4, 4).masked_fill(~keep, -1e9)
    attention(q, q, q, scale=0.5, attention_mask=added)
    assert [torch.equal(call["atten_mask"], ~keep) for call in calls] == [True, True]
    assert [(c["heads"], c["layout"], c["scale"], c["keep_prob"]) for c in calls] == [
        (3, "BNSD", 0.25, 0.75),
        (3, "BNSD", 0.5, 1.0),
    ]
    with pytest.raises(ValueError, match="attention_mask is None"):
        attention(q, q, q)


@pytest.mark.torch
def test_flash_attn_gets_rows_of_unlike_length_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def varlen(q: Any, k: Any, v: Any, *lengths: Any, **how: Any) -> Any:
        assert lengths[2:] == (3, 3) and how["causal"] is True
        return q * 2

    package = types.ModuleType("flash_attn")
    package.flash_attn_func = lambda q, k, v, **how: q + how["dropout_p"]  # type: ignore[attr-defined]
    package.flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    package.__file__ = "/site/flash_attn/__init__.py"
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr(backends, "has_package", lambda name: True)
    attention = flash_attention.FlashAttentionDaoCudaExtension().load()
    q = torch.arange(24.0).reshape(2, 2, 3, 2)  # two rows, two heads, three places
    assert torch.equal(attention(q, q, q), q)
    where, lengths = torch.tensor([0, 1, 3, 4, 5]), torch.tensor([0, 2, 5])
    padding = {"cu_seqlens_q": lengths, "cu_seqlens_kv": lengths, "max_seqlen_q": 3, "max_seqlen_kv": 3}
    found = attention(q, q, q, is_causal=True, q_indices=where, kv_indices=where, **padding)
    wanted = q * 2
    wanted[0, :, 2] = 0  # the padding
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="without q_indices"):
        attention(q, q, q, **padding)
