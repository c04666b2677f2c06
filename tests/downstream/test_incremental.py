"""The author's loop, under a compiler that counts: an editable install compiles what changed, and nothing twice."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.build import scaffold
from tests.downstream.conftest import CHECKOUT, CLASSIC_MODULE, STABLE_MODULE
from tests.kit import forked, spawn

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


class Counting:
    """A compiler that writes down each source it compiles. It is called g++: torch goes by the name."""

    def __init__(self, folder: Path) -> None:
        self.path, self._log = folder / "g++", folder / "compiled"
        self.path.write_text(
            f'#!/bin/sh\nfor word; do case "$word" in /*.cpp) echo "${{word##*/}}" >> "{self._log}";; esac; done\n'
            f'exec "{shutil.which("g++")}" "$@"\n'
        )
        self.path.chmod(0o755)

    def compiled(self) -> list[str]:
        """What was compiled since this was asked the last time."""
        names = sorted(self._log.read_text().split()) if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return names


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    (tmp_path / "compiler").mkdir()
    return Counting(tmp_path / "compiler")


def editable(project: Path, compiler: Counting, *, package: Path = CHECKOUT / "pkg"):
    """What `pip install --editable` asks of the build backend; ``package`` is where precast lies for it."""
    out = project / "out"
    out.mkdir(exist_ok=True)
    code = (
        "import sys, warnings; warnings.simplefilter('ignore');"
        "from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    )
    ours = {"PYTHONPATH": package, "MAX_JOBS": 2, "CXX": compiler.path, "CCACHE_DISABLE": 1}
    return forked.run(code, str(out), env=spawn.environ("PRECAST_LABEL", **ours), cwd=project)


def built(project: Path, compiler: Counting, **options) -> list[str]:
    """The sources that one editable install compiles."""
    done = editable(project, compiler, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return compiler.compiled()


def test_a_stable_library_is_compiled_as_far_as_it_changed(project: Callable[..., Path], counting: Counting) -> None:
    root = project("edited_ops", STABLE_MODULE)
    assert built(root, counting) == ["factor.cpp", "scale.cpp"]
    library = root / "edited_ops" / "_C" / "host" / "scale.so"
    first = library.read_bytes()
    assert built(root, counting) == [], "nothing changed"
    assert built(root, counting) == [], "nor after an install that compiled nothing"
    (root / "csrc" / "factor.cpp").write_text('#include "factor.h"\nfloat factor() { return 5; }\n')
    assert built(root, counting) == ["factor.cpp"]
    assert library.read_bytes() != first, "the new library lies where Python looks"
    (root / "csrc" / "factor.h").write_text("float factor();  // of five\n")
    assert built(root, counting) == ["factor.cpp", "scale.cpp"], "both read the header"
    text = (root / "setup.py").read_text().replace("define_macros=[", 'define_macros=[("MORE", None), ')
    (root / "setup.py").write_text(text)
    assert built(root, counting) == ["factor.cpp", "scale.cpp"], "other flags"
    assert built(root, counting) == []


def test_an_editable_install_needs_no_precast_and_leaves_what_init_ignores(
    project: Callable[..., Path], counting: Counting
) -> None:
    root = project("lone_ops", STABLE_MODULE)
    built(root, counting)
    made = {path.name for path in (root / "lone_ops").iterdir()} - {"__init__.py"}
    assert made == {"_C", "_precast", "scale.py"}
    assert {f"{name}/" for name in made if "." not in name} <= set(scaffold._IGNORED.splitlines())
    code = "import sys; sys.modules['precast'] = None; import torch, lone_ops.scale\n"
    code += "print(torch.ops.lone_ops.scale(torch.ones(1)).item())"
    done = forked.run_anew(code, env=spawn.environ(PYTHONPATH=root), cwd=root)
    assert done.stdout == "3.0\n", done.stderr
    (root / "csrc" / "factor.h").write_text("float factor();  // edited\n")
    done = forked.run_anew(code, env=spawn.environ(PYTHONPATH=root), cwd=root)
    assert done.stdout == "3.0\n" and "UserWarning: lone_ops.scale is older than " in done.stderr


def test_a_wheel_takes_the_objects_of_an_editable_install(
    project: Callable[..., Path], counting: Counting, setup_py: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    root = project("shared_ops", STABLE_MODULE)
    assert len(built(root, counting)) == 2
    done = setup_py(root, "bdist_wheel", CXX=str(counting.path), CCACHE_DISABLE="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert counting.compiled() == []


def test_an_isolated_build_brings_the_same_headers_in_another_folder(
    project: Callable[..., Path], counting: Counting, tmp_path: Path
) -> None:
    """Torch and precast are installed again for each isolated build, with new times; only their content counts."""
    import torch

    root = project("isolated_ops", STABLE_MODULE)
    include = Path(torch.__file__).parent / "include"
    counts = []
    for name in ("first", "second", "newer"):
        package = tmp_path / name
        copied = {"copy_function": shutil.copyfile, "ignore": shutil.ignore_patterns("__pycache__", "_C")}
        shutil.copytree(CHECKOUT / "pkg", package, **copied)
        shutil.copytree(CHECKOUT / "csrc", package / "precast" / "csrc", **copied)
        for part in ("csrc", "headeronly"):
            shutil.copytree(include / "torch" / part, package / "torch" / "include" / "torch" / part, **copied)
        (package / "torch" / "__init__.py").touch()
        if name == "newer":
            with (package / "torch" / "include" / "torch" / "csrc" / "stable" / "ops.h").open("a") as header:
                header.write("// a later torch\n")
        counts.append(built(root, counting, package=package))
    assert counts == [["factor.cpp", "scale.cpp"], [], ["factor.cpp", "scale.cpp"]]


@pytest.mark.parametrize("changed", ["the compiler", "the headers of torch"])
def test_what_no_command_names_is_noticed(
    changed: str, project: Callable[..., Path], counting: Counting, tmp_path: Path
) -> None:
    root = project("replaced_ops", STABLE_MODULE)
    assert len(built(root, counting)) == 2
    (tools,) = root.glob("build/temp*/precast/replaced_ops.scale/tools")
    compiler, headers = tools.read_text().splitlines()
    assert re.fullmatch(r"g\+\+ [\d.]+", compiler) and re.fullmatch(r"[0-9a-f]{64}", headers)
    old = {"the compiler": f"g++ 1.0\n{headers}\n", "the headers of torch": f"{compiler}\n{'0' * 64}\n"}
    tools.write_text(old[changed])  # as an older one would have left it
    assert built(root, counting) == ["factor.cpp", "scale.cpp"]


def test_a_module_for_one_torch_is_compiled_as_far_as_it_changed(
    project: Callable[..., Path], counting: Counting
) -> None:
    root = project("classic_ops", CLASSIC_MODULE)
    source = root / "csrc" / "fused.cpp"
    (root / "csrc" / "name.h").write_text('#define WORD "threads"\n')
    source.write_text('#include "name.h"\n' + source.read_text().replace('{{"threads"', "{{WORD"))
    assert built(root, counting) == ["fused.cpp"]
    assert built(root, counting) == [], "nothing changed"
    source.write_text(source.read_text() + "// edited\n")
    assert built(root, counting) == ["fused.cpp"]
    (root / "csrc" / "name.h").write_text('#define WORD "number"\n')
    assert built(root, counting) == ["fused.cpp"], "it reads the header"
    text = (root / "setup.py").read_text()
    (root / "setup.py").write_text(text.replace('fused.cpp"]', 'fused.cpp"], extra_compile_args=["-DMORE"]'))
    assert built(root, counting) == ["fused.cpp"], "other flags"
    assert built(root, counting) == []


def test_the_log_that_a_failure_names_is_there_afterwards(project: Callable[..., Path], counting: Counting) -> None:
    root = project("broken_ops", STABLE_MODULE)
    (root / "csrc" / "factor.cpp").write_text("this is no C++\n")
    done = editable(root, counting)
    assert done.returncode != 0
    match = re.search(r"read the whole log: (.+)", done.stderr)
    assert match is not None, done.stderr[-2000:]
    log = Path(match[1])
    assert "this is no C++" in log.read_text() or "factor.cpp" in log.read_text()
    shutil.rmtree(root)  # as pip does with the folder of an isolated build
    assert log.is_file()
