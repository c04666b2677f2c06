"""No module of the current directory is executed: not by a verb, not by a build, not by a child of either.

The folder holds every name of the standard library and of our dependencies, modules and packages in turn. What is
planted writes its name into a log and then gives way to the real one, so that a run goes on to its end and the log is
complete.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder import python
from precast._cli.parser import make_parser
from tests.downstream.conftest import CLASSIC_MODULE, STABLE_MODULE, write_project
from tests.kit import fetched, spawn
from tests.load.conftest import Site
from tests.unit.cli import parsers
from tests.unit.extension.conftest import BINDING, CLASSES

OTHERS = {"sitecustomize", "usercustomize", "torch", "setuptools", "pip", "numpy", "ninja", "triton", "rich", "planted"}
NAMES = sorted({*sys.stdlib_module_names, *OTHERS} - {"__main__"})
PLANTED = """
import posix, sys  # both are built in
log = posix.open({log!r}, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT, 0o600)
posix.write(log, (__name__ + "\\n").encode())
posix.close(log)
path = sys.path[:]
sys.path[:] = [entry for entry in path if entry not in ("", ".", {here!r})]
del sys.modules[__name__]
try:
    __import__(__name__)
finally:
    sys.path[:] = path
"""
SCRIPT = "import sys\nfrom precast.__main__ import main\nsys.exit(main())\n"  # as pip writes it
VERBS = {
    "doctor": ["--deep", "adam_"],
    "why": ["adam_"],
    "list": [],
    "cache dir": [],
    "cache list": ["--all"],
    "cache verify": [],
    "cache prune": [],
    "cache clear": ["--dry-run"],
    "warm": ["adam_"],
    "export-cache": ["../adam.tar.xz", "adam_"],
    "import-cache": ["../adam.tar.xz"],
    "report": [],
    "adopt": ["--dry-run", "torch.nn:Identity"],
    "xray": [os.path.realpath(sys.executable)],
}
BUILDS = {
    "host": "import precast; assert precast.load('adam_').host.kind == 'jit'",
    "device": """
        from precast.core.capability import GpuTarget
        from precast._load import jit, probe
        settings = probe.read_settings()
        targets, builders = [GpuTarget.parse('sm_90')], probe.probe_builders(settings)
        made = jit.build_images('rms_norm', targets, builders, settings, 'a test')
        assert [source.kind for source in made.values()] == ['jit']
    """,
    "extension": """
        from somebody.extensions import NumberExtension
        loaded = NumberExtension().load()
        assert (loaded.number(), loaded.source.kind) == (42, 'jit')
    """,
    # Where torch has no CUDA, the child says so, after it has imported what it builds with.
    "CUDA extension": """
        import os
        from torch.utils import cpp_extension
        cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or os.environ['TOOLKIT']
        from precast.errors import BuildFailed
        from somebody.extensions import NumberCudaExtension
        try:
            assert NumberCudaExtension().build_jit().number() == 42
        except BuildFailed as error:
            print(error)
    """,
}


class Here:
    """A current directory with a module of every name, and the log of what was executed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_name("log")
        folder.mkdir(exist_ok=True)
        content = PLANTED.format(log=str(self.log), here=str(folder))
        for number, name in enumerate(NAMES):
            if number % 2:
                (folder / f"{name}.py").write_text(content)
            else:
                (folder / name).mkdir()
                (folder / name / "__init__.py").write_text(content)
        announced = folder / "planted-1.0.dist-info"
        announced.mkdir()
        (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        (announced / "entry_points.txt").write_text("[precast.extensions]\nRMSNormLoader.planted = planted:Any\n")

    def run(self, site: Site, words: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        ours = {"PYTHONPATH": site.folder, "PRECAST_CACHE_DIR": site.cache, "HOME": site.home, "MAX_JOBS": 2}
        return spawn.python(*words, env=spawn.environ("PRECAST_", **ours) | env, cwd=self.folder, status=None)

    def executed(self) -> set[str]:
        """What has been executed since this was asked last."""
        names = set(self.log.read_text().split()) if self.log.exists() else set()
        self.log.unlink(missing_ok=True)
        return names


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path / "here")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """The command of a program that lies elsewhere, as the ``precast`` command does."""

    def write(code: str) -> list[str]:
        path = tmp_path / "bin" / "program"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return [str(path)]

    return write


def test_the_danger_is_real(here: Here, bare: Site) -> None:
    assert here.run(bare, ["-c", "import json, torch"]).returncode == 0
    executed = here.executed()
    assert executed >= {"json", "torch"}
    assert {(here.folder / name).is_dir() for name in executed} == {True, False}, "modules and packages"


@pytest.mark.torch
@pytest.mark.compiler
def test_no_verb_executes_it(here: Here, built: Site, script: Callable[[str], list[str]]) -> None:
    assert set(VERBS) == parsers.leaves(make_parser()), "every verb is tried"
    for verb, arguments in VERBS.items():
        done = here.run(built, [*script(SCRIPT), *verb.split(), *arguments])
        assert (done.returncode, done.stderr) in ((0, ""), (1, "")), (verb, done)
        assert here.executed() == set(), verb
        if verb == "doctor":
            assert "1 of 1 results are right" in done.stdout, "the child has worked"


@pytest.mark.parametrize("how", ["-m", "-m precast.build", "empty PYTHONPATH entry"])
def test_what_python_itself_looks_for_there_is_all(how: str, here: Here, pure: Site, tmp_path: Path) -> None:
    """``python -m`` and an empty entry search the current directory before our first line; nothing is added to it."""
    (pure.folder / "nothing").mkdir()
    (pure.folder / "nothing" / "__init__.py").touch()
    (pure.folder / "nothing" / "__main__.py").touch()
    script = tmp_path / "script"
    script.write_text(SCRIPT)
    (tmp_path / "empty").write_text("import nothing")
    if how == "empty PYTHONPATH entry":
        env = {"PYTHONPATH": f":{pure.folder}"}
        runs = [str(tmp_path / "empty")], [str(script), "list"]
    else:
        env = {}
        runs = ["-m", "nothing"], ["-m", "precast", "list"]
        if how == "-m precast.build":
            runs = ["-m", "nothing"], ["-m", "precast.build", "--cflags"]
    done = here.run(pure, runs[0], **env)
    assert done.returncode == 0, done.stderr
    python_s = here.executed()
    done = here.run(pure, runs[1], **env)
    assert done.returncode == 0, done.stderr
    assert here.executed() <= python_s


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("kind", BUILDS)
def test_no_build_executes_it(
    kind: str, here: Here, cold: Site, script: Callable[[str], list[str]], kept_folder: Callable[[str], Path]
) -> None:
    path = [str(cold.folder)]
    if kind == "device":
        site = kept_folder(f"nvrtc-{fetched.LABELS['cu130'].nvrtc}")
        fetched.label_nvrtc("cu130", site)
        path.append(str(site))
    if kind in ("extension", "CUDA extension"):
        toolkit = cold.folder / "toolkit" / "bin" / "nvcc"
        toolkit.parent.mkdir(parents=True)
        toolkit.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
        toolkit.chmod(0o755)
        folder = cold.folder / "somebody" / "csrc" / "kernel"
        (folder / "include").mkdir(parents=True)
        (folder.parents[1] / "__init__.py").touch()
        (folder.parents[1] / "extensions.py").write_text(CLASSES)
        (folder / "include" / "number.h").write_text("#define NUMBER 40\n")
        (folder / "number.cpp").write_text(BINDING.replace("EXTRA", "2" if kind == "CUDA extension" else "EXTRA"))
        (folder / "scale.cu").write_text("")
    done = here.run(cold, script(BUILDS[kind]), PYTHONPATH=os.pathsep.join(path), TOOLKIT=str(cold.folder / "toolkit"))
    assert done.returncode == 0, done.stderr
    assert here.executed() == set()
    assert kind != "CUDA extension" or not done.stdout or "export CUDA_HOME=/usr/local/cuda" in done.stdout


@pytest.mark.torch
@pytest.mark.compiler
def test_no_wheel_of_somebody_else_executes_it(tmp_path: Path, built: Site, script: Callable[[str], list[str]]) -> None:
    """Setuptools reads setup.py in its folder; what lies beside it is not imported."""
    project = write_project(tmp_path / "project", "blog", STABLE_MODULE, CLASSIC_MODULE)
    here = Here(project)
    program = script(
        "import runpy, sys, warnings\nwarnings.simplefilter('ignore')\n"
        "sys.argv[:] = ['setup.py', '-q', 'build_ext']\nrunpy.run_path('setup.py', run_name='__main__')\n"
    )
    done = here.run(built, program)
    assert done.returncode == 0, done.stderr
    assert list(project.glob("build/*/blog/_C/host/*.so")) and here.executed() == set()


def children(source: str) -> list[str]:
    """The second word of every command that begins with this Python."""
    words = [node.elts for node in ast.walk(ast.parse(source)) if isinstance(node, ast.List | ast.Tuple)]
    return [ast.unparse(w[1]) for w in words if len(w) > 1 and ast.unparse(w[0]) == "sys.executable"]


def test_every_child_of_the_package_starts_in_one_place_or_isolated() -> None:
    """``-I`` is for a child that needs nothing but the standard library."""
    assert children("run([sys.executable, '-m', 'pip'])") == ["'-m'"]
    package = Path(python.__file__).parents[1]
    files = [path for path in package.rglob("*.py") if path != Path(python.__file__)]
    found = {path.name: set(children(path.read_text())) for path in files}
    assert {name: words for name, words in found.items() if words - {"'-I'"}} == {}
    assert '[own, "-I", "-S", ' in (package / "_builder" / "process.py").read_text()


LIBRARY = "/usr/lib/python3"


@pytest.mark.parametrize(
    ("path", "named", "kept"),
    [
        (["", LIBRARY, "/site"], [], [LIBRARY, "/site"]),  # -c, a prompt
        ([".", "/x", LIBRARY, "./", ""], [], ["/x", LIBRARY]),
        (["/here", "/here", LIBRARY], [], [LIBRARY]),  # -m, and an empty entry of PYTHONPATH
        (["/here/", "/x/../here", LIBRARY], [], [LIBRARY]),
        (["/here", "/x", LIBRARY], ["/here"], ["/here", "/x", LIBRARY]),  # PYTHONPATH=/here; a --target folder
        (["", "/here", LIBRARY], ["/here"], ["/here", LIBRARY]),
        (["/here", LIBRARY, "/site", "/here"], [], [LIBRARY, "/site", "/here"]),  # an editable installation
        (["src", LIBRARY, "/home/user/site"], [], ["/here/src", LIBRARY, "/home/user/site"]),
        (["/x", "/here/src", "__editable__.a.finder"], [], ["/x", "/here/src", "/here/__editable__.a.finder"]),
    ],
)
def test_only_what_python_adds_is_left_out(path: list[str], named: list[str], kept: list[str]) -> None:
    assert python.without_here(path, "/here", named=named, library=LIBRARY) == kept


def test_a_link_to_the_current_directory_is_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    path = [str(tmp_path / "link"), LIBRARY]
    assert python.without_here(path, str(tmp_path), named=[], library=LIBRARY) == [LIBRARY]


SAYS = "import json, os, sys; print(json.dumps([sys.path, sys.argv, {}, os.environ.get('PYTHONPATH')]))"


def says(parent: list[str], cwd: Path, **env: str) -> tuple[list[str], list[str], object, str | None]:
    """The path, the arguments, a fact and PYTHONPATH of the child of a Python that was started like this."""
    code = (
        f"import sys; sys.path.append({str(cwd.parent / 'added')!r}); import os, subprocess\n"
        f"from precast._builder import python\n"
        f"subprocess.run(python.command('told', 'an argument', '-x'), env=python.environment(), check=True)"
    )
    done = spawn.python(*parent, "-c", code, env=spawn.environ("PYTHON", **env), cwd=cwd)
    found: tuple[list[str], list[str], object, str | None] = tuple(json.loads(done.stdout))
    return found


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A current directory, beside a folder with a module that says what its Python is like."""
    for name in ("added", "here", "named"):
        (tmp_path / name).mkdir()
    fact = "[sys.flags.no_user_site, sys.flags.ignore_environment, sys.flags.isolated]"
    (tmp_path / "added" / "told.py").write_text(SAYS.format(fact))
    return tmp_path / "here"


def test_the_child_has_the_path_of_its_parent_and_its_arguments(told: Path) -> None:
    named, added = str(told.parent / "named"), str(told.parent / "added")
    (told.parent / "named" / "sitecustomize.py").write_text("import builtins; builtins.customized = True")
    path, argv, _, variable = says([], told, PYTHONPATH=f":{named}:.:relative")
    assert argv == [f"{added}/told.py", "an argument", "-x"]
    assert named in path and added in path and str(told) not in path and "" not in path
    assert str(told / "relative") in path, "a folder that the user named, as this process has it"
    assert variable == named, "the rest of it would be searched before any code runs"


@pytest.mark.parametrize(("option", "flags"), [("-s", [1, 0, 0]), ("-E", [0, 1, 0]), ("-I", [1, 1, 1])])
def test_the_child_is_told_what_its_parent_was_told(told: Path, option: str, flags: list[int]) -> None:
    assert says([option], told)[2] == flags


def test_a_folder_that_is_named_stays_though_it_is_the_current_one(told: Path) -> None:
    path, _, _, variable = says([], told, PYTHONPATH=f"{told}")
    assert str(told) in path and variable == str(told)


def test_packages_of_a_target_folder_are_found_from_within_it(pure: Site) -> None:
    """``pip install --target .`` and a script beside it: our own package lies in the current directory."""
    program = pure.folder / "program.py"
    program.write_text("import sys\nfrom precast._builder import python\nprint(python.child_path()[0])")
    assert spawn.python(program, env=spawn.environ("PYTHON"), cwd=pure.folder).stdout == f"{pure.folder}\n"


def test_without_a_current_directory_there_is_still_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", ["", "relative", "/absolute"])
    assert python.child_path() == ["/absolute"]
