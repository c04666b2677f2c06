"""The plugin of vLLM, met by the real files of its wheels: which layers it replaces, and that they round alike."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast._adopt import vllm  # noqa: E402
from precast._builder import torch_wheel  # noqa: E402
from tests.adopt import vllm_stand_in  # noqa: E402
from tests.kit import forked  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.headers]
NEWEST = "0.33.0"
OURS = {f"Precast{name}" for name in (*vllm._ACTIVATIONS, *vllm._NORMS)}


@pytest.fixture(scope="module")
def tree(kept_folder: Callable[[str], Path]) -> Callable[[str], Path]:
    """A folder with the files of a version, which are read once."""

    def make(version: str) -> Path:
        folder = kept_folder("vllm-files") / version
        if not (folder / f"vllm-{version}.dist-info" / "METADATA").exists():  # written last
            with torch_wheel.opened(torch_wheel.find_wheel(version, package="vllm")) as wheel:
                names = set(wheel.namelist())
                vllm_stand_in.prepare(folder, version, lambda name: wheel.read(name) if name in names else None)
        return folder

    return make


@pytest.fixture
def loaded(tree: Any, checkout: Path, tmp_path: Path) -> Callable[..., Any]:
    """What vLLM's layers are once its plugins are loaded."""

    def load(version: str, platform: str, *options: str, plugins: str = "precast") -> Any:
        code = "import sys; from tests.adopt import vllm_stand_in; vllm_stand_in.main(*sys.argv[1:])"
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        done = forked.run(code, str(tree(version)), platform, plugins, *options, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return load


def names(found: Any, *, called: bool = False) -> set[str]:
    """The classes of the layers, or of those whose forward is ours."""
    return {one["layer"] for one in found["layers"] if "alike" in one or not called}


@pytest.mark.parametrize("version", ["0.22.0", NEWEST])
def test_layers_are_replaced_and_round_alike(version: str, loaded: Any) -> None:
    found = loaded(version, "cuda")
    assert names(found) == names(found, called=True) == OURS
    for one in found["layers"]:
        assert one["alike"] > 0.999 or one["dtype"] == "float32", one
        assert one["name"].endswith(("_and_mul", "_and_silu", "rms_norm")), one  # as `custom_ops` spells it
    assert found["rest"] == ["residual", "another dtype", "a part", "batch invariance"]
    assert found["said"] == []


def test_custom_ops_turn_layers_on_and_off(loaded: Any) -> None:
    found = loaded(NEWEST, "cuda", "none", "+silu_and_mul")
    assert names(found, called=True) == {"PrecastSiluAndMul"}


def test_a_layer_of_another_plugin_stays(loaded: Any) -> None:
    found = loaded(NEWEST, "cpu", plugins="precast,other")
    assert names(found) == OURS - {"PrecastMulAndSilu"} | {"Other"}
    assert found["said"] == ["vLLM's MulAndSilu is replaced by tests.adopt.vllm_stand_in already and stays"] * 2


@pytest.mark.parametrize("plugins", ["", "other"])
def test_nothing_happens_unless_the_plugin_is_named(plugins: str, loaded: Any) -> None:
    found = loaded(NEWEST, "cuda", plugins=plugins)
    assert not names(found) & OURS
    assert found["said"] == []


@pytest.mark.parametrize(
    ("version", "platform", "said"),
    [
        ("0.34.0", "cuda", "vLLM 0.34.0 is not known; needed 0.22 or newer, and below 0.34. Its layers stay"),
        ("0.21.1", "cuda", "vLLM 0.21.1 is not known; needed 0.22 or newer, and below 0.34. Its layers stay"),
        (NEWEST, "rocm", "vLLM runs on rocm; needed cuda or cpu. Its layers stay"),
    ],
)
def test_what_is_not_known_stays(
    version: str, platform: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = vllm_stand_in.Rest(platform, "precast", ["all"]).known
    modules = {"vllm": {}, **{name: there[name] for name in ("vllm.envs", "vllm.platforms")}}
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent = name.rpartition(".")[0]
        if parent:
            monkeypatch.setattr(sys.modules[parent], name.rpartition(".")[2], module, raising=False)
    monkeypatch.setattr(vllm, "version_of", lambda _: version)
    with caplog.at_level("WARNING", "precast"):
        vllm.register()
    assert caplog.messages == [said]
