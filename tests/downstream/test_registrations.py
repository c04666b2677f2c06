"""An implementation under a misspelt name: found as the package is built, or as it is loaded, never at a first call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast.build.registrations import read, refuse, refuse_misspelt
from precast.core import dangling
from precast.core.dangling import near_miss
from precast.errors import KernelError, KernelIncompatible

from .conftest import STABLE, STABLE_MODULE, _wheel, run_setup

IMPL = 'm.impl("scale"'


@pytest.mark.parametrize(
    ("name", "defined", "meant"),
    [
        ("wav", ["wave", "other"], "wave"),
        ("moment", ["moments"], "moments"),
        ("wave_", ["wave"], None),
        ("wave", ["wave_"], None),
        ("scale_backward", ["scale"], None),
        ("scale", [], None),
    ],
)
def test_what_is_nearly_the_name_of_an_op(name: str, defined: list[str], meant: str | None) -> None:
    assert near_miss(name, defined) == meant


GOOD = """
TORCH_LIBRARY(sea, m) { m.def("wave(Tensor x) -> Tensor"); m.def("wave_(Tensor(a!) x) -> ()"); }
TORCH_LIBRARY_IMPL(sea, CPU, m) { m.impl("wave", &wave); m.impl("wave_", &wave_); }
TORCH_LIBRARY_IMPL(land, CPU, m) { m.impl("wav", &wav); }  // its schema comes from Python
// TORCH_LIBRARY_IMPL(sea, CPU, m) { m.impl("wav", &wave); }
"""


def test_sources_that_fit_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(GOOD)
    # fails if a source without a mistake is refused: that raises
    refuse_misspelt(read([tmp_path / "a.cpp", tmp_path / "missing.cpp"]))


def test_a_misspelt_implementation_is_named_with_its_line_though_the_schema_is_in_another_file(tmp_path: Path) -> None:
    one, other = tmp_path / "a.cpp", tmp_path / "b.cpp"
    one.write_text(GOOD)
    other.write_text('\nSTABLE_TORCH_LIBRARY_IMPL(sea, CUDA, m) {\n  m.impl("wav", TORCH_BOX(&wave));\n}\n')
    with pytest.raises(KernelError) as caught:
        refuse_misspelt(read([one, other]))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"there is no op sea::wav, but {other} implements it"
    assert f"{other}:3" in lines[1] and "sea::wave is defined" in lines[1]


PYTHON = """
import torch
NAME = "sea"
library = torch.library.Library(NAME, "{kind}")
library.define("{op}(Tensor x) -> Tensor")
@torch.library.custom_op("air::gust", mutates_args=())
def gust(x: torch.Tensor) -> torch.Tensor: ...
torch.library.define("fire::burn", "(Tensor x) -> Tensor")
"""
WAVE = 'm.def("wave(Tensor x) -> Tensor");'


@pytest.mark.parametrize(
    ("kind", "op", "block", "twice"),
    [
        ("DEF", "tide", f"TORCH_LIBRARY(SEA, m) {{ {WAVE} }}", "the namespace sea"),
        ("DEF", "wave", f"STABLE_TORCH_LIBRARY_FRAGMENT(sea, m) {{ {WAVE} }}", "the op sea::wave"),
        ("FRAGMENT", "wave", f"TORCH_LIBRARY(sea, m) {{ {WAVE} }}", "the op sea::wave"),
        ("DEF", "tide", 'TORCH_LIBRARY_FRAGMENT(air, m) { m.def("gust(Tensor x) -> Tensor"); }', "the op air::gust"),
        ("DEF", "tide", 'TORCH_LIBRARY(fire, m) { m.def("burn(Tensor x) -> Tensor"); }', "the op fire::burn"),
        ("DEF", "wave", 'TORCH_LIBRARY_IMPL(sea, CPU, m) { m.impl("wave", &wave); }', None),
        ("DEF", "tide", f"TORCH_LIBRARY_FRAGMENT(sea, m) {{ {WAVE} }}", None),
        ("FRAGMENT", "tide", f"TORCH_LIBRARY(sea, m) {{ {WAVE} }}", None),
        ("DEF", "wave", f"TORCH_LIBRARY(land, m) {{ {WAVE} }}", None),
    ],
)
def test_a_schema_is_defined_in_one_language(tmp_path: Path, kind: str, op: str, block: str, twice: str | None) -> None:
    source, module = tmp_path / "a.cpp", tmp_path / "ops.py"
    source.write_text(f"// sea\n{block}\n")
    module.write_text(PYTHON.format(kind=kind, op=op))
    (tmp_path / "odd.py").write_text("this is no Python")
    extension = SimpleNamespace(sources=[str(source)], define_macros=[("SEA", "sea"), ("FAST", None)])
    python = [tmp_path / "odd.py", tmp_path / "missing.py", module]
    if twice is None:
        refuse([extension], python)  # fails if what torch allows is refused: that raises
        return
    with pytest.raises(KernelError, match=f"{twice} is defined twice\n  found   {module}:\\d+, and {source}:2\n"):
        refuse([extension], python)


@pytest.mark.torch
def test_a_dangling_implementation_is_refused_where_the_namespace_has_the_op_that_was_meant() -> None:
    import torch

    library = torch.library.Library("dangling_sea", "DEF")
    library.define("wave(Tensor x) -> Tensor")
    kept = []

    def register(namespace: str, name: str) -> None:
        made = torch._C._dispatch_library("IMPL", namespace, "CPU", "sea.cpp", 12)
        kept.append(made)
        made.impl(name, "CPU", lambda x: x)

    with dangling.refused(Path("/site/sea.so")):
        register("dangling_sea", "wave")
        register("dangling_sea", "tide")  # its schema may come later
        register("dangling_land", "wav")
    with (
        pytest.raises(KernelIncompatible, match=r"(?s)no op dangling_sea::wav.*sea\.so.*sea\.cpp:12.*::wave is"),
        dangling.refused(Path("/site/sea.so")),
    ):
        register("dangling_sea", "wav")
    with dangling.refused(Path("/site/sea.so")):
        pass  # it is only told of the library that did it


@pytest.mark.torch
@pytest.mark.compiler
def test_a_build_stops_at_a_misspelt_implementation(project: Callable[..., Path]) -> None:
    root = project("misspelt_ops", STABLE_MODULE)
    (root / "csrc" / "scale.cpp").write_text(STABLE.replace(IMPL, 'm.impl("scal"'))
    done = run_setup(root, "bdist_wheel")
    assert done.returncode != 0 and "there is no op misspelt_ops::scal," in done.stderr, done.stderr
    assert not (root / "dist").exists()


@pytest.mark.torch
@pytest.mark.compiler
def test_what_the_sources_do_not_show_is_refused_as_the_package_is_loaded(
    project: Callable[..., Path], installed: Callable[[Path], Path]
) -> None:
    root = project("hidden_ops", STABLE_MODULE)
    hidden = STABLE.replace(IMPL, "m.impl(SCALE").replace(
        "STABLE_TORCH_LIBRARY(", '#define SCALE "scal"\nSTABLE_TORCH_LIBRARY(', 1
    )
    (root / "csrc" / "scale.cpp").write_text(hidden)
    installed(_wheel(root))
    with pytest.raises(KernelIncompatible, match="there is no op hidden_ops::scal") as caught:
        importlib.import_module("hidden_ops.scale")
    assert "hidden_ops::scale is defined" in str(caught.value) and "csrc/scale.cpp:" in str(caught.value)
