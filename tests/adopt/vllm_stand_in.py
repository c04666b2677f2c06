"""The real files of a vLLM wheel that a plugin meets, and a stand-in for all other modules of vLLM."""

from __future__ import annotations

import collections
import importlib.machinery
import json
import logging
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

FILES = ("plugins/__init__.py", "model_executor/custom_op.py", "ir/__init__.py", "ir/op.py", "ir/util.py")
FILES += ("ir/tolerances.py", "ir/ops/__init__.py", "ir/ops/layernorm.py", "ir/ops/activation.py")
FILES += ("model_executor/layers/activation.py", "model_executor/layers/layernorm.py")
DTYPES = ("float32", "bfloat16", "float16")


class Rest:
    """Finds what the wheel's files import and the folder lacks."""

    def __init__(self, platform: str, plugins: str, options: list[str]) -> None:
        compilation = types.SimpleNamespace(custom_ops=options, mode=0, backend="eager")
        compilation.enabled_custom_ops = collections.Counter()
        compilation.disabled_custom_ops = collections.Counter()
        kind = {f"is_{name}": lambda name=name: name == platform for name in ("cuda", "cpu", "rocm", "xpu", "tpu")}
        kind |= {"is_out_of_tree": lambda: False, "is_cuda_alike": lambda: platform in ("cuda", "rocm")}
        log = logging.getLogger("vllm")
        log.warning_once = log.info_once = log.debug  # type: ignore[attr-defined]
        self.known: dict[str, dict[str, Any]] = {
            "vllm.envs": {"VLLM_PLUGINS": plugins.split(",") if plugins else None, "VLLM_BATCH_INVARIANT": False},
            "vllm.config": {"get_cached_compilation_config": lambda: compilation},
            "vllm.logger": {"init_logger": lambda _: log},
            "vllm.platforms": {"current_platform": types.SimpleNamespace(**kind, device_type=platform)},
            "vllm.utils.collection_utils": {"LazyDict": dict},
            "regex": {"compile": re.compile},
        }
        self.known["vllm.platforms"]["current_platform"].get_cpu_architecture = lambda: "x86"

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        here = name == "regex" or name.startswith("vllm")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if here else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(self.known.get(module.__name__, {}))
        module.__getattr__ = mock.MagicMock(side_effect=_anything)  # type: ignore[method-assign]


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return mock.MagicMock(name=name)


def prepare(folder: Path, version: str, read: Callable[[str], bytes | None]) -> None:
    """Write the wheel's files below the folder, and what says the version."""
    for name in FILES:
        content = read(f"vllm/{name}")
        if content is not None:
            path = folder / "vllm" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def main(folder: str, platform: str, plugin_names: str, *options: str) -> None:
    """Load the plugins as vLLM does it, and print what its layers are and compute.

    ``options`` are the custom ops of vLLM's configuration. The plugin ``other`` replaces an activation first.
    """
    import torch

    sys.path.insert(0, folder)
    for package in [path for path in Path(folder, "vllm").glob("**/") if not (path / "__init__.py").exists()]:
        (package / "__init__.py").touch()
    sys.meta_path.append(Rest(platform, plugin_names, list(options) or ["all"]))  # type: ignore[arg-type]
    library = torch.library.Library("_C", "FRAGMENT")
    for name in ("silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul", "fatrelu_and_mul"):
        library.define(f"{name}(Tensor! out, Tensor x) -> ()")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("precast").addHandler(handler)

    from vllm import plugins
    from vllm.model_executor.layers import activation as act
    from vllm.model_executor.layers import layernorm

    if "other" in plugin_names:
        act.MulAndSilu.register_oot(type("Other", (act.MulAndSilu,), {}))
    plugins.load_general_plugins()
    plugins.plugins_loaded = False
    plugins.load_general_plugins()  # vLLM asks plugins to bear it

    layers = [act.SiluAndMul(), act.MulAndSilu(), act.FatreluAndMul(0.5), act.GeluAndMul(), act.GeluAndMul("tanh")]
    for dtype in DTYPES:
        torch.set_default_dtype(getattr(torch, dtype))
        layers += [layernorm.RMSNorm(64, eps=1e-5), layernorm.GemmaRMSNorm(64)]
        torch.set_default_dtype(torch.float32)
    found = [_fate(layer, dtype) for layer in layers for dtype in DTYPES if _fits(layer, dtype)]
    print(json.dumps({"layers": found, "said": said, "rest": _rest(layernorm, layers)}))


def _fits(layer: Any, dtype: str) -> bool:
    weight = getattr(layer, "weight", None)
    return weight is None or str(weight.dtype) == f"torch.{dtype}"


def _fate(layer: Any, dtype: str) -> dict[str, Any]:
    """Which class a layer is, and the share of elements that its two forwards round alike."""
    import torch

    generator = torch.Generator().manual_seed(0)
    if getattr(layer, "weight", None) is not None:
        layer.weight.data = torch.randn(64, generator=generator).to(layer.weight.dtype)
    x = torch.randn(300, 2, 128, generator=generator).to(getattr(torch, dtype))[:, 1, -64:]  # a part of a projection
    called = layer._forward_method.__qualname__
    result = {"layer": type(layer).__name__, "name": type(layer).name, "dtype": dtype}
    if "_replaced" in called:
        ours, own = layer(x).detach(), layer.forward_native(x).detach()
        result["alike"] = float((ours == own).float().mean())
        torch.testing.assert_close(ours, own, rtol=2e-2, atol=1e-6)
    return result


def _rest(layernorm: Any, layers: list[Any]) -> list[str]:
    """Calls that go to vLLM's own forward."""
    import torch
    from vllm import envs

    norm, x = layers[5], torch.randn(4, 64)
    if type(norm) is layernorm.RMSNorm:
        return []
    given = {"residual": (norm, x, x), "another dtype": (norm, x.bfloat16())}
    given["a part"] = (layernorm.RMSNorm(64, var_hidden_size=32), x)
    with mock.patch.multiple(layernorm.RMSNorm, forward_cuda=lambda *_: "own", forward_cpu=lambda *_: "own"):
        found = [name for name, (layer, *arguments) in given.items() if isinstance(layer(*arguments), str)]
        envs.VLLM_BATCH_INVARIANT = True
        return [*found, "batch invariance"] if isinstance(norm(x), str) else found
