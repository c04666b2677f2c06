"""Machines on which something is not there: each refusal names what was looked for, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.load.conftest import Site

LOAD = "import precast; precast.load('adam_')"
DOCTOR = "import sys; from precast.__main__ import main; sys.exit(main(['doctor', '--json']))"


@pytest.mark.torch
def test_without_a_compiler_the_places_looked_at_are_named(bare: Site) -> None:
    said = bare.refusal(LOAD, env={"PATH": "/nonexistent"})
    assert said.startswith("KernelUnavailable: adam_ cannot be loaded for cpu")
    assert "no-compiler" in said and "g++" in said and "clang++" in said and "not there" in said
    assert "install -y g++" in said


@pytest.mark.torch
def test_a_compiler_that_was_named_is_not_replaced_by_another(bare: Site) -> None:
    said = bare.refusal(LOAD, env={"CXX": "/opt/nowhere/g++"})
    assert "no-compiler" in said and "/opt/nowhere/g++" in said


@pytest.mark.torch
@pytest.mark.compiler
def test_an_installation_without_its_sources_says_so(bare: Site) -> None:
    said = bare.refusal(LOAD)
    assert "the kernel sources are missing" in said and str(bare.folder / "precast/csrc") in said


@pytest.mark.torch
@pytest.mark.compiler
def test_a_cache_that_cannot_be_written_is_named(pure: Site, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    said = pure.refusal(LOAD, env={"PRECAST_CACHE_DIR": str(file / "cache")})
    assert str(file / "cache") in said and "cannot be written" in said and "PRECAST_CACHE_DIR=" in said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("raise OSError('libtorch_cpu.so: cannot open shared object file')", "OSError: libtorch_cpu.so: cannot open"),
        ("import no_such_module_of_torch", "ModuleNotFoundError: No module named 'no_such_module_of_torch'"),
        ("this is no python", "SyntaxError"),
        ("__version__ = 'nonsense'\nclass version: git_version = None", "not a torch version: 'nonsense'"),
    ],
)
def test_a_broken_torch_is_a_fact_of_the_host(bare: Site, tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text(text)
    env = {"PYTHONPATH": f"{tmp_path / 'broken'}:{bare.folder}"}
    said = bare.refusal(LOAD, env=env)
    assert "torch-missing" in said and found in said
    doctor = bare.run(DOCTOR, env=env)
    assert doctor.returncode == 1, doctor.stderr
    facts = json.loads(doctor.stdout)
    assert found in facts["host"]["torch_error"] and not facts["ok"]


def test_the_empty_folder_that_an_interrupted_uninstall_leaves_is_no_torch(bare: Site) -> None:
    (bare.folder / "torch").mkdir()
    refused = bare.run(LOAD, options=("-S",))
    assert "torch-missing" in refused.stderr and "AttributeError" in refused.stderr, refused.stderr


def test_without_torch_there_is_one_reason_and_the_doctor_still_works(bare: Site) -> None:
    """-S keeps site-packages, and with it torch, off the path."""
    code = f"import sys; sys.path.insert(0, {str(bare.folder)!r})\n"
    done = bare.run(code + DOCTOR, options=("-S",))
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    assert facts["host"]["torch"] is None and facts["host"]["torch_error"] is None
    refused = bare.run(code + LOAD, options=("-S",))
    assert refused.returncode == 1
    assert "KernelUnavailable: adam_ cannot be loaded for cpu" in refused.stderr
    assert "found no torch" in refused.stderr and "pip install" in refused.stderr


@pytest.mark.torch
def test_a_pure_installation_has_no_compiled_module_to_import(bare: Site) -> None:
    done = bare.run("from precast._C import cpu_adam_x86")
    assert done.returncode == 1
    assert (
        "ImportError: cannot import 'cpu_adam_x86' from 'precast._C': this installation has nothing prebuilt"
        in done.stderr
    )
    assert "CUDA_EXT=1" in done.stderr
    other = bare.run("import precast._C; precast._C.no_such_module")
    assert (
        "AttributeError: module 'precast._C' has no attribute 'no_such_module'; it has activations_cpu" in other.stderr
    )


def test_the_doctor_changes_nothing(bare: Site) -> None:
    bare.run(DOCTOR)
    assert list(bare.home.iterdir()) == [] and not bare.cache.exists()


@pytest.mark.parametrize(("platform", "system"), [("win32", "Windows"), ("darwin", "Darwin")])
def test_another_system_gets_one_sentence_at_first_use_and_a_doctors_report(
    bare: Site, platform: str, system: str
) -> None:
    """What only Linux has is taken away; torch is kept out, as its own modules would be confused by this."""
    code = f"""
        import os, platform, sys
        sys.platform = {platform!r}
        platform.system = lambda: {system!r}
        for name in ("register_at_fork", "confstr", "getuid", "sched_getaffinity"):
            delattr(os, name)
        for name in ("fcntl", "torch", "ninja"):
            sys.modules[name] = None
        import precast
        from precast.errors import KernelUnavailable
        from precast._dispatch import namespace
        for use in (lambda: precast.load("adam_"), namespace.library):
            try:
                use()
            except KernelUnavailable as error:
                assert error.what == "precast has kernels for Linux only, and this is {platform!r}; nothing was loaded"
            else:
                raise AssertionError("nothing was refused")
        from precast.__main__ import main
        assert main(["doctor"]) == 1
    """
    said = bare.anew.ok(code)
    assert f"precast has kernels for Linux only, and this is {system!r}; nothing was loaded" in said
