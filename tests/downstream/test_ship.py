"""One command ships packages of a list: fetched by hash, built, guarded, tested and put on an index page."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from precast._builder.tables import MatrixError
from precast.build import __main__ as build_main
from precast.build import environments, index, orders, shipping, trying, wheels
from precast.build.environments import Environment
from precast.core import gpus
from precast.core.version import TorchVersion
from precast.errors import KernelError
from tests.downstream.conftest import CLASSIC
from tests.kit import spawn
from tests.kit.wheels import make_wheel

SETUP = """
import os
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
open(os.environ["ORPHAN_RAN"], "a").close()
setup(
    name="orphan-ops", version="1.0", packages=["orphan_ops"], cmdclass={"build_ext": BuildExtension},
    ext_modules=[CppExtension("orphan_ops.fused", ["fused.cpp"], extra_compile_args=["-O0"])],
)
"""
TEST = "from orphan_ops import fused\ndef test_threads(): assert fused.threads() > 0\n"
LIST = """
torch = ["{torch}"]
[[package]]
name = "orphan-ops"
version = "1.0"
sha256 = "{sha256}"
variables = {{ ORPHAN_RAN = "{ran}" }}
tests = ["test_threads.py", "sdist:own_tests"]
before = "none"
"""


def this_torch() -> TorchVersion:
    import torch

    return TorchVersion.parse(torch.__version__)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of every torch is the one of this process."""
    this_torch()
    site = Path(sys.modules["torch"].__file__ or "").parents[1]
    made = Environment(Path(sys.prefix), site, None, True)
    monkeypatch.setattr(environments, "environment", lambda job, settings: made)


@pytest.fixture
def listed(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list with a package of a package index, which is a folder here; its torch is the one of this environment."""
    tree = tmp_path / "orphan-ops-1.0"
    (tree / "orphan_ops").mkdir(parents=True)
    (tree / "orphan_ops" / "__init__.py").touch()
    (tree / "own_tests").mkdir()
    (tree / "own_tests" / "test_own.py").write_text(TEST.replace("threads()", "own()", 1))
    (tree / "setup.py").write_text(SETUP)
    (tree / "fused.cpp").write_text(CLASSIC)
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: orphan-ops\nVersion: 1.0\n")
    (tmp_path / "links").mkdir()
    archive = tmp_path / "links" / "orphan_ops-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tree, tree.name)
    (tmp_path / "test_threads.py").write_text(TEST)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    torch = str(this_torch().release)
    (tmp_path / "list.toml").write_text(LIST.format(torch=torch, sha256=digest, ran=tmp_path / "ran"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return tmp_path / "list.toml"


def ship(path: Path, *more: str) -> int:
    return build_main.main(["ship", str(path), "-o", str(path.parent / "out"), *more])


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.wheel
@pytest.mark.usefixtures("quick_trials")
def test_a_package_of_a_list_is_shipped(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ship(listed) == 0, capsys.readouterr().err
    out = listed.parent / "out"
    (report,) = json.loads((out / "report.json").read_text())
    assert list(report["tests"].values()) == [[2, 0, 0]] and report["wheel"].startswith("orphan_ops-1.0")
    assert "manylinux_2_" in report["wheel"]
    assert f"| orphan-ops 1.0 | cpu | none | {this_torch().release}." in (out / "report.md").read_text()
    index = (out / "site" / "cpu").as_uri()
    options = ("--no-deps", "--no-cache-dir", "--target", str(listed.parent / "site"))
    spawn.python("-m", "pip", "install", "-q", "--isolated", "--index-url", index, *options, "orphan-ops")
    assert (listed.parent / "site" / "orphan_ops" / "fused.py").is_file()
    # Without a GPU no test of a build with CUDA runs; the wheel is put on the index of its label.
    (part,) = (out / "parts").glob("*/*.whl")
    copy = Path(shutil.copy(part, listed.parent))
    monkeypatch.setattr(wheels, "build", lambda *arguments: wheels.Built(copy, 1, 1, 1.0, 0.0))
    monkeypatch.setattr(gpus, "driver_version", lambda: None)
    cpu = listed.read_text()
    listed.write_text(f'{cpu}cuda = ["cu130"]\n')
    assert ship(listed) == 0
    assert "no test was run: there is no driver of a GPU" in capsys.readouterr().out
    assert [one["tests"] for one in json.loads((out / "report.json").read_text())][1] == {}
    listed.write_text(cpu)
    # The next run takes the archive and the build that are kept, as both would fail now.
    monkeypatch.setattr(wheels, "build", lambda *arguments: pytest.fail("built again"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(listed.parent / "nowhere"))
    shutil.rmtree(out / "site")
    (listed.parent / "test_threads.py").write_text(TEST.replace("> 0", "< 0"))
    capsys.readouterr()
    assert ship(listed) == 1
    said = capsys.readouterr()
    assert "1 passed, 1 failed" in said.out and "not shipped: orphan-ops" in said.err
    (listed.parent / "test_threads.py").write_text("import not_there\n")
    assert ship(listed) == 1
    assert "the tests of orphan_ops-1.0" in capsys.readouterr().err, "no test ran, which is no result"
    assert not (out / "site").exists(), "what fails is not put on the index"
    (archive,) = (out / "archives").glob("*/*.tar.gz")
    archive.write_bytes(b"other")
    assert ship(listed) == 1
    assert "was changed\n  found   sha256" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.wheel
def test_an_archive_with_another_hash_is_not_unpacked(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = listed.read_text()
    listed.write_text(text.replace(text.partition('sha256 = "')[2][:64], "0" * 64))
    assert ship(listed) == 1
    assert "DO NOT MATCH THE HASHES" in capsys.readouterr().err
    assert not (listed.parent / "ran").exists(), "no code of the archive ran"
    assert not list((listed.parent / "out").rglob("*.whl"))


BROKEN = [
    ('name = "orphan-ops"', 'name = "--index-url"', "needed the name of a package, found '--index-url'"),
    ('version = "1.0"', 'version = "1.0 --hash"', "needed a version, found"),
    ("sha256 = ", 'sha256 = "12"\nbefore = ', "needed 64 hexadecimal digits, found '12'"),
    ('torch = ["', 'torch = ["9', "not a torch that is known"),
    ("[[package]]", '[[package]]\ncuda = ["cu999"]', "not a CUDA label: 'cu999'"),
    ("[[package]]", "[[package]]\ncuda = []", "needed a torch and a label"),
    ("[[package]]", '[[package]]\nshell = "rm"', "unknown keys: shell"),
    ("[[package]]", 'shell = "rm"\n[[package]]', "unknown keys: shell"),
    ('"test_threads.py"', '"test_gone.py"', "list[orphan-ops].tests: there is no file "),
]


@pytest.mark.parametrize(("old", "new", "why"), BROKEN)
def test_a_list_with_a_mistake_is_refused(old: str, new: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "test_threads.py").touch()
    text = LIST.format(torch="2.13", sha256="0" * 64, ran="x")
    assert old in text
    path = tmp_path / "list"
    path.write_text(text)
    (order,) = orders.read(path)
    assert (order.label, order.jobs[0].name) == ("cpu", "torch2.13.0-cpu")
    path.write_text(
        text.replace(old, new).replace('before = "none"', "") if "before" in new else text.replace(old, new)
    )
    with pytest.raises(MatrixError) as caught:
        orders.read(path)
    assert why.removeprefix("list[orphan-ops]") in str(caught.value)


def test_two_entries_for_one_label_are_refused(tmp_path: Path) -> None:
    entry = '[[package]]\nname = "a"\nversion = "1"\nsha256 = "' + "0" * 64 + '"\ntorch = ["2.13"]\n'
    (tmp_path / "list").write_text(entry + entry + 'cuda = ["cu130"]\n')
    assert [one.label for one in orders.read(tmp_path / "list")] == ["cpu", "cu130"]
    (tmp_path / "list").write_text(entry * 2)
    with pytest.raises(MatrixError, match="a is listed twice for cpu"):
        orders.read(tmp_path / "list")


def test_tests_may_require_a_package_that_the_list_made_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [f'[[package]]\nname = "{name}"\nversion = "1"\nsha256 = "{name * 64}"\n' for name in "ab"]
    path, out = tmp_path / "list", tmp_path / "out"
    path.write_text('torch = ["2.13"]\n' + "".join(entries) + 'requires = ["numpy", "a"]\n')
    assert build_main.main(["ship", str(path), "-o", str(out), "--only", "b"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "the tests of b cannot be run: they require a, of the same list\n  found   no wheel of a 1 in"
    )
    assert "fix     1) repeat the command with --only a b\nnot shipped: b" in said
    listed = orders.read(path)
    (wheel,) = index.add([make_wheel(tmp_path, name="a", version="1")], out / "site")
    wheel = Path(shutil.copytree(out / "site" / "all", out / "site" / "cpu"), "a", wheel.name)
    made = {"name": "a", "label": "cpu", "sha256": "a" * 64, "wheel": wheel.name}
    (out / "report.json").write_text(json.dumps([made]))
    assert shipping._required(listed[1], listed, out) == ["numpy", str(wheel)]
    (out / "report.json").write_text(json.dumps([{**made, "sha256": "c" * 64}]))
    with pytest.raises(KernelError, match="of the same list"):
        shipping._required(listed[1], listed, out)
    path.write_text('torch = ["2.13"]\n' + entries[1] + 'requires = ["a"]\n' + entries[0])
    with pytest.raises(MatrixError, match="list: b requires a, which comes after it"):
        orders.read(path)


def test_a_python_that_reads_no_toml_is_told_what_to_install() -> None:
    code = (
        "import sys\nfrom precast.build import __main__ as build\n"
        "sys.modules['tomli'] = sys.modules['tomllib'] = None\n"
        "sys.exit(build.main(['ship', 'list.toml']))"
    )
    done = spawn.python("-c", code, status=2)
    assert done.stderr.startswith("TOML cannot be read\n") and " install tomli\n" in done.stderr


def test_a_package_that_the_list_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list").write_text(
        '[[package]]\nname = "a"\nversion = "1"\nsha256 = "' + "0" * 64 + '"\ntorch = ["2.13"]\n'
    )
    assert build_main.main(["ship", str(tmp_path / "list"), "-o", str(tmp_path / "out"), "--only", "b"]) == 2
    assert "has no package b" in capsys.readouterr().err


def test_the_table_of_a_report() -> None:
    build = {"libraries": 2, "seconds": 90}
    entry = {
        "name": "ops", "version": "1.0", "label": "cu130", "gpus": "8.0", "before": "68 wheels", "bytes": 2_500_000,
        "builds": {"torch2.13.0-cu130": build, "torch2.14.1-cu130": build}, "tests": {"torch2.13.0-cu130": [5, 0, 2]},
    }  # fmt: skip
    head, _, row = shipping.table([entry]).splitlines()
    assert head.startswith("| package | label |")
    assert row == "| ops 1.0 | cu130 (8.0) | 68 wheels | 2.13.0, 2.14.1 | 2.50 | 3.0 | 5 passed, 2 skipped |"
    assert shipping.table([{**entry, "tests": {}}]).endswith("| none was run |\n")


def test_an_index_has_a_folder_for_each_label_and_keeps_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make_wheel(tmp_path / "a", name="my_ops", requires=["torch"])
    assert build_main.main(["index", str(first), "-o", str(tmp_path / "site")]) == 0
    second = make_wheel(tmp_path / "b", name="my_ops", version="2.0")
    assert build_main.main(["index", str(second), str(first), "-o", str(tmp_path / "site")]) == 0
    page = (tmp_path / "site" / "all" / "my-ops" / "index.html").read_text()
    assert page.count("<a ") == 2 and page.count("#sha256=") == 2 and 'data-requires-python="&gt;=3.10"' in page
    document = json.loads((tmp_path / "site" / "all" / "my-ops" / "index.json").read_text())
    assert document["versions"] == ["1.0", "2.0"] and all(one["core-metadata"]["sha256"] for one in document["files"])
    assert '<a href="my-ops/">' in (tmp_path / "site" / "all" / "index.html").read_text()
    other = make_wheel(tmp_path / "c", name="my_ops", requires=["numpy"])
    assert build_main.main(["index", str(other), "-o", str(tmp_path / "site")]) == 1
    assert "already exists with other bytes" in capsys.readouterr().err
    (tmp_path / "no.whl").write_bytes(b"x")
    (tmp_path / "my_ops-3.0-py3-none-any.whl").write_bytes(b"x")
    for name in ("no.whl", "my_ops-3.0-py3-none-any.whl"):
        assert build_main.main(["index", str(tmp_path / name), "-o", str(tmp_path / "site")]) == 1


def test_an_index_lists_every_wheel_in_a_folder_and_loses_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    twins = [make_wheel(tmp_path / name, name="my_ops", requires=[name]) for name in ("torch", "numpy")]
    assert build_main.main(["index", *map(str, twins), "-o", str(site)]) == 1
    assert f"{twins[0]} already exists with other bytes" in capsys.readouterr().err and not site.exists()
    assert build_main.main(["index", str(twins[0]), str(twins[0]), "-o", str(site)]) == 0
    by_hand = make_wheel(site / "all" / "my-ops", name="my_ops", version="1.5")
    late = make_wheel(tmp_path, name="my_ops", version="2.0", python=">=3.10é")
    dotted = make_wheel(tmp_path, name="my.other.ops")
    assert build_main.main(["index", str(late), str(dotted), "-o", str(site)]) == 0
    document = json.loads((site / "all" / "my-ops" / "index.json").read_text(encoding="utf-8"))
    assert document["versions"] == ["1.0", "1.5", "2.0"] and by_hand.with_name(f"{by_hand.name}.metadata").is_file()
    assert document["files"][2]["requires-python"] == ">=3.10é"
    assert (site / "all" / "my-other-ops" / dotted.name).is_file(), "a name that older setuptools write"
    (site / "all" / "my-ops" / "notes.whl").write_bytes(b"x")
    assert build_main.main(["index", str(late), "-o", str(site)]) == 1
    assert "notes.whl cannot be read as a wheel" in capsys.readouterr().err


def test_an_index_takes_no_wheel_that_installers_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = make_wheel(tmp_path / "a", name="my_ops", version="1.0+cu130.torch2.13", files={"my_ops/x.py": b"damaged"})
    data = whole.read_bytes()
    whole.write_bytes(data.replace(b"damaged", b"changed", 1))
    other = make_wheel(tmp_path / "b", name="my_ops", metadata="Name: other\nVersion: 1.0\n")
    older = make_wheel(tmp_path / "c", name="my_ops", metadata="Name: my_ops\nVersion: 0.9\n")
    for wheel, said in ((whole, "Bad CRC-32"), (other, "other 1.0 in its METADATA"), (older, "my_ops 0.9 in its")):
        assert build_main.main(["index", str(wheel), "-o", str(tmp_path / "site")]) == 1
        assert said in capsys.readouterr().err and not (tmp_path / "site").exists()
    whole.write_bytes(data)
    assert build_main.main(["index", str(whole), "-o", str(tmp_path / "site")]) == 0


def test_what_is_no_wheel_or_no_test_is_said_before_a_torch_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(environments, "environment")
    wheel, gone = make_wheel(tmp_path, name="my_ops"), tmp_path / "gone.py"
    for pair, said in (((gone, tmp_path), "cannot be read"), ((wheel, gone), "cannot be run")):
        assert build_main.main(["test", str(pair[0]), "--torch", "2.13", "--tests", str(pair[1])]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["class", "queue", "torch", "precast", "tests", "_ops", "ops_", "1ops", "my-ops", "Ops"]
)
def test_a_name_that_cannot_be_a_package_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        build_main.main(["init", name])
    assert f"{name} is no name for a package" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops").symlink_to("nowhere/ops")
    assert build_main.main(["init", "ops"]) == 1
    assert capsys.readouterr().err == "python -m precast.build init: ops: File exists\n"


def test_a_test_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"the test .*gone\.py cannot be run"):
        trying._copied(tmp_path / "gone.py", tmp_path / "to")


SKIPS = "import pytest\n@pytest.mark.skip(reason='no GPU')\ndef test_gpu(): pass\n"
NO_PROOF = [
    (SKIPS, "0 passed, 0 failed, 1 skipped", "found   1 skipped, 0 passed; SKIPPED [1] test_ops.py:2: no GPU"),
    ("import pytest\npytest.importorskip('no_such')\n", "1 skipped", "could not import 'no_such'"),
    ("def helper(): pass\n", "0 passed, 0 failed, 0 skipped", "found   0 skipped, 0 passed\n"),
    (f"{SKIPS}def test_cpu(): import my_ops, other_ops\n", "1 passed, 0 failed, 1 skipped", ""),
]


@pytest.mark.torch
@pytest.mark.wheel
@pytest.mark.parametrize(("text", "counts", "why"), NO_PROOF, ids=["skips", "import", "empty", "mixed"])
def test_a_wheel_of_which_no_test_passes_is_refused(
    text: str, counts: str, why: str, here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, tests = make_wheel(tmp_path, name="my_ops"), tmp_path / "test_ops.py"
    tests.write_text(text)
    other = make_wheel(
        tmp_path, name="other_ops", requires=["torch==0.1", "precast==9"]
    )  # taken without its requirements
    given = ("--torch", str(this_torch().release), "--tests", str(tests), "--requires", str(other))
    status = build_main.main(["test", str(wheel), *given])
    said = capsys.readouterr().out
    assert status == int(bool(why)) and counts in said and why in said
    assert ("  no test shows that the wheel works: pytest test_ops.py\n" in said) == bool(why)


ORPHANS = Path(__file__).resolve().parents[2] / "examples" / "orphans"


def test_the_example_shows_the_report_of_its_list() -> None:
    report = json.loads((ORPHANS / "report.json").read_text())
    assert shipping.table(report) in (ORPHANS / "README.md").read_text()
    listed = {(one.name, one.label): one for one in orders.read(ORPHANS / "orphans.toml")}
    assert sorted(listed) == [(one["name"], one["label"]) for one in report]
    for one in report:
        order = listed[one["name"], one["label"]]
        assert (one["version"], one["sha256"]) == (order.version, order.sha256)
        assert list(one["builds"]) == [job.name for job in order.jobs]


def test_a_hash_is_written_into_the_list_when_asked(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = listed.read_text()
    (order,) = orders.read(listed)
    listed.write_text(text.replace(f'sha256 = "{order.sha256}"\n', ""))
    assert build_main.main(["ship", str(listed), "-o", str(listed.parent / "out")]) == 2
    assert "orphan-ops 1.0 has no sha256" in (said := capsys.readouterr().err) and f"ship --pin {listed}" in said
    shipped = list[str]()
    monkeypatch.setattr(shipping, "_ship", lambda one, *rest: shipped.append(one.sha256) or True)
    assert build_main.main(["ship", "--pin", str(listed), "-o", str(listed.parent / "out")]) == 0
    assert shipped == [order.sha256] and listed.read_text() == text, "in its place, and nothing else changed"
    listed.write_text(text.replace(f'sha256 = "{order.sha256}"\n', "").replace('"1.0"', '"9.9"'))
    assert build_main.main(["ship", "--pin", str(listed), "-o", str(listed.parent / "out")]) == 2
    assert "from the package index: a command failed" in capsys.readouterr().err
