"""Every verb in every state of the world that it did not ask for: a documented status and a sentence, no traceback."""

from __future__ import annotations

import _ctypes  # a shared module of Python
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._abi.settings import VARIABLES
from precast._builder import cache_archive, cache_tools, flags
from precast._builder.cache import BuildKey, Cache
from precast._cli import status
from precast._cli.parser import make_parser
from precast.core import probe
from precast.errors import KernelError
from tests.kit import forked, spawn
from tests.load.conftest import Site
from tests.unit.cli import parsers

# What each verb is given. "warm" and "doctor" find cpu_adam prebuilt and build nothing.
VERBS = {
    "doctor": ["adam_"],
    "why": ["adam_"],
    "list": [],
    "cache dir": [],
    "cache list": ["--all"],
    "cache verify": ["--json"],
    "cache prune": ["--older-than", "1", "--dry-run"],
    "cache clear": ["--dry-run"],
    "warm": ["adam_"],
    "export-cache": ["exported.tar.gz"],
    "import-cache": ["nowhere.tar"],
    "report": [],
    "adopt": ["--dry-run", "torch.nn:Identity"],
    "xray": [_ctypes.__file__],
}
COMMANDS = [[*verb.split(), *arguments] for verb, arguments in VERBS.items()]
# All verbs in one process: most of the time of a short command is the import of torch.
RUN = """
import io, json, os, sys, traceback
if len(sys.argv) > 2:
    os.rmdir(os.getcwd())
from precast.__main__ import main
found, shown = {}, sys.stdout
for words in json.loads(sys.argv[1]):
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding=shown.encoding) for _ in range(2))
    sys.stderr.reconfigure(errors="backslashreplace")
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    except Exception:
        code = traceback.format_exc()
    sys.stdout.flush(), sys.stderr.flush()
    said = [stream.buffer.getvalue().decode(errors="replace") for stream in (sys.stdout, sys.stderr)]
    found[" ".join(words)] = [code, *said]
sys.stdout = shown
print(json.dumps(found))
"""


def everything(site: Site, env: dict[str, str], *, cwd_deleted: bool = False) -> dict[str, tuple[object, str, str]]:
    """The status and the words of each verb in a world like this; each has kept to the rules."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "XDG_"))}
    ours = {"PYTHONPATH": str(site.folder), "HOME": str(site.home), "TMPDIR": str(site.home)}
    cwd = site.home / "here"
    cwd.mkdir(exist_ok=True)
    run = forked.run_anew if cwd_deleted else forked.run
    done = run(RUN, json.dumps(COMMANDS), *(["x"] if cwd_deleted else []), env=kept | ours | env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[object, str, str]] = json.loads(done.stdout.splitlines()[-1])
    for words, (code, out, err) in found.items():
        assert code in status.MEANINGS, f"{words}: {code}"
        assert "Traceback" not in out + err, f"{words}: {err}"
        if code in (status.USAGE, status.FAILED):
            assert any(line.startswith(("precast: ", "usage: ")) for line in err.splitlines()), f"{words}: {err}"
    return found


def test_every_verb_is_in_the_table() -> None:
    assert set(VERBS) == parsers.leaves(make_parser())


WORLDS: dict[str, dict[str, str]] = {
    "as it should be": {},
    "no home": {"HOME": ""},
    "a home that cannot be made": {"HOME": "/dev/null/home"},
    "a home with a line break": {"HOME": "/tmp/a\nb"},
    "a home of invalid bytes": {"HOME": "/tmp/\udcff"},
    "no home and no temporary folder": {"HOME": "", "TMPDIR": "/nowhere"},
    "a cache below a file": {"PRECAST_CACHE_DIR": "/dev/null/cache"},
    "a cache that is a file": {"PRECAST_CACHE_DIR": "/dev/null"},
    "a cache that cannot be made": {"PRECAST_CACHE_DIR": "/proc/cache"},
    "a cache with a line break": {"PRECAST_CACHE_DIR": "/tmp/a\nb"},
    "a cache of a user that is not there": {"PRECAST_CACHE_DIR": "~nobody-there/x"},
    "a cache here": {"PRECAST_CACHE_DIR": "."},
    "a site cache of a user that is not there": {"PRECAST_CACHE_PATH": "~nobody-there/x:/dev/null:\udcff"},
    "a cache of invalid bytes": {"PRECAST_CACHE_DIR": "/tmp/precast-no\udcff\udcfe"},
    "letters that ASCII lacks": {
        "PRECAST_CACHE_DIR": "/tmp/précast-nichts",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    },
    "nothing on PATH": {"PATH": ""},
    **{f"{v.name} is garbage": {v.name: "gar\udcffbage;$("} for v in VARIABLES},
}


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("world", WORLDS)
def test_no_verb_ends_with_a_traceback(world: str, wheel: Site) -> None:
    found = everything(wheel, WORLDS[world])
    codes = {words: code for words, (code, _, _) in found.items()}
    if world == "as it should be":
        assert codes.pop("import-cache nowhere.tar") == codes.pop("export-cache exported.tar.gz") == status.FAILED
        assert set(codes.values()) == {status.GOOD}, found
    setting = world.removesuffix(" is garbage")
    bad = {"PRECAST_JIT", "PRECAST_JIT_WAIT", "MAX_JOBS", "PRECAST_DEBUG", "PRECAST_QUIET", "PRECAST_INDEX_URL"}
    if setting in bad or world == "a cache with a line break":
        assert set(codes.values()) == {status.USAGE}
        assert all(next(iter(WORLDS[world])) in err for _, _, err in found.values())
    elif world.endswith("is garbage"):
        assert status.USAGE not in codes.values()
        assert codes["doctor adam_"] == (status.NO if setting == "PRECAST_CPU_LEVEL" else status.GOOD), found


@pytest.mark.parametrize("cache", ["", "relative"])
def test_a_current_directory_that_was_deleted_is_said(cache: str, bare: Site) -> None:
    """The import of torch would end the process there."""
    found = everything(bare, {"PRECAST_CACHE_DIR": cache} if cache else {}, cwd_deleted=True)
    assert {code for code, _, _ in found.values()} == {status.FAILED}
    assert all("the current directory was deleted" in err for _, _, err in found.values())


RAISED = [
    "RuntimeError",
    "ImportError",
    "OSError",
    "TypeError",
    "NameError",
    "KeyError",
    "AssertionError",
    "SystemError",
]


@pytest.mark.compiler
@pytest.mark.parametrize("raised", RAISED)
def test_a_torch_whose_import_raises_is_a_reason(raised: str, wheel: Site) -> None:
    (wheel.folder / "torch").mkdir()
    (wheel.folder / "torch" / "__init__.py").write_text(f"raise {raised}('broken on purpose')")
    found = everything(wheel, {})
    code, out, _ = found["doctor adam_"]
    assert code == status.NO and f"{raised}: " in out and "broken on purpose" in out
    assert found["why adam_"][0] == status.NO and found["list"][0] == status.GOOD


@pytest.fixture
def precast(wheel: Site) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a line of shell in which ``precast`` is the command."""
    script = wheel.folder / "precast-command"
    script.write_text("import sys\nfrom precast.__main__ import main\nsys.exit(main())\n")

    def run(line: str, **env: str) -> subprocess.CompletedProcess[str]:
        ours = {"PYTHONPATH": wheel.folder, "HOME": wheel.home, "PRECAST_CACHE_DIR": wheel.cache, **env}
        function = f'precast() {{ {sys.executable} {script} "$@"; }}\n'
        return spawn.run(
            "bash", "-c", function + line, env=spawn.environ("PRECAST_", **ours), cwd=wheel.home, status=None
        )

    return run


LINES = [" ".join(words) for words in COMMANDS if words[0] not in ("export-cache", "import-cache")]
# What a shell does to a standard stream, and a process to its own, with what Python finds there as it starts.
STREAMS = {
    "2>&-": "os.close(2); sys.stderr = sys.__stderr__ = None",
    "<&-": "os.close(0); sys.stdin = sys.__stdin__ = None",
    "2>/dev/full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2); sys.stderr = open(2, 'w')",
    "<&- 2>&-": "os.close(0); os.close(2); sys.stdin = sys.stderr = sys.__stdin__ = sys.__stderr__ = None",
    ">/dev/full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); sys.stdout = open(1, 'w')",
    ">&-": "os.close(1); sys.stdout = sys.__stdout__ = None",
    "| true; exit ${PIPESTATUS[0]}": (
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1); sys.stdout = open(1, 'w')"
    ),
}


@pytest.fixture
def answer(wheel: Site, precast: Callable[..., object]) -> Callable[[str, str], object]:
    """Runs a line with an odd standard stream: "list" in a shell, all others in forks that have imported torch."""

    def run(words: str, where: str) -> object:
        if words == "list":
            return precast(f"precast {words} {where}")
        code = f"import os, sys\n{STREAMS[where]}\nfrom precast.__main__ import main\nsys.exit(main(sys.argv[1:]))"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECAST_")}
        ours = {"PYTHONPATH": str(wheel.folder), "HOME": str(wheel.home), "PRECAST_CACHE_DIR": str(wheel.cache)}
        return forked.run(code, *words.split(), env=kept | ours, cwd=wheel.home)

    return run


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("words", [*LINES, "--help", "cache --help", "--version"])
def test_standard_output_that_is_full_or_closed_is_said(words: str, answer: Callable[[str, str], object]) -> None:
    for where, why in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        done = answer(words, where)
        assert done.returncode == status.FAILED, (where, done)
        assert done.stderr == f"precast: standard output cannot be written: {why}" + (
            "; send it to /dev/null to do without the answer\n" if where == ">&-" else "\n"
        )


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("words", [*LINES, "--help"])
def test_a_reader_that_is_gone_is_no_error(words: str, answer: Callable[[str, str], object]) -> None:
    done = answer(words, "| true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (status.GOOD, "")


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("where", ["2>&-", "<&-", "2>/dev/full", "<&- 2>&-"])
def test_other_streams_are_not_needed(
    where: str, answer: Callable[[str, str], object], precast: Callable[..., object]
) -> None:
    """Without them a file of the cache would get their number, and with it what libraries print."""
    done = answer("doctor --deep adam_", where)
    assert done.returncode == status.GOOD and "and 1 of 1 results are right" in done.stdout and done.stderr == ""
    done = precast(f"precast why no_such_op {where}")
    assert done.returncode == status.USAGE and "Traceback" not in done.stderr
    done = precast(f"precast cache dir {where}", MAX_JOBS="many")
    assert done.returncode == status.USAGE and done.stdout == ""


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_a_build_goes_on_where_nobody_can_be_told(where: str, cold: Site) -> None:
    code = "import precast; print(precast.load('adam_').host.kind)"
    env = spawn.environ("PRECAST_", PYTHONPATH=cold.folder, HOME=cold.home, PRECAST_CACHE_DIR=cold.cache)
    assert spawn.run("bash", "-c", f'{sys.executable} -c "{code}" {where}', env=env).stdout == "jit\n"


@pytest.mark.torch
@pytest.mark.compiler
def test_a_cache_of_invalid_bytes_is_a_cache(cold: Site, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9 \xff")
    shutil.move(cold.cache, place)
    env = {"PRECAST_CACHE_DIR": str(place)}
    load = "import precast; print(precast.load('adam_').host.kind)"
    assert cold.ok(load, env=env) == "jit\n" and cold.ok(load, env=env) == "cache\n"
    ask = "import sys; from precast.__main__ import main; sys.exit(main(['cache', 'dir']))"
    command = [sys.executable, "-c", ask]
    kept = {**os.environ, **env, "PYTHONPATH": str(cold.folder)}
    done = subprocess.run(command, env=kept, capture_output=True, check=True)
    assert done.stdout == os.fsencode(place) + b"\n", "a shell can use what is printed"


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("name", ["PRECAST_LABEL", "PRECAST_ARCH", "PRECAST_ONLY_TORCH", "PRECAST_CUDA_ARCH_LIST"])
def test_a_setting_of_a_build_breaks_no_op(name: str, wheel: Site) -> None:
    assert wheel.ok("import precast; print(precast.load('adam_').host.kind)", env={name: "garbage"}) == "prebuilt\n"


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("level", ["avx9000", "sve4096", "best"])
@pytest.mark.parametrize("kind", ["wheel", "built"])
def test_doctor_says_of_a_level_what_loading_does(level: str, kind: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(kind)
    best = flags.best_level(platform.machine(), probe.cpu_features()).name
    env = {"PRECAST_CPU_LEVEL": best if level == "best" else level}
    loads = (
        "import precast\ntry:\n    precast.load('adam_')\n    print('loads')\nexcept RuntimeError as e:\n    print(e)"
    )
    said = "import sys; from precast.__main__ import main; sys.exit(main(['doctor', 'adam_']))"
    loaded, doctor = site.ok(loads, env=env), site.run(said, env=env)
    if level == "best":
        assert loaded == "loads\n" and doctor.returncode == status.GOOD
    else:
        assert loaded.startswith(f"PRECAST_CPU_LEVEL={level} is not available here\n")
        assert doctor.returncode == status.NO
        assert all(line in doctor.stdout for line in loaded.splitlines())


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("kind", ["pure", "wheel"])
@pytest.mark.parametrize("place", ["file/cache", "open to all"])
def test_doctor_says_of_a_cache_what_loading_does(
    kind: str, place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site: Site = request.getfixturevalue(kind)
    (tmp_path / "file").touch()
    if place == "open to all":
        (tmp_path / place).mkdir()
        (tmp_path / place).chmod(0o777)
    env = {"PRECAST_CACHE_DIR": str(tmp_path / place)}
    loads = (
        "import precast\ntry:\n    precast.load('adam_')\n    print('loads')\nexcept RuntimeError as e:\n    print(e)"
    )
    said = "import sys; from precast.__main__ import main; sys.exit(main(['doctor', 'adam_']))"
    loaded, doctor = site.ok(loads, env=env), site.run(said, env=env)
    if kind == "wheel":
        assert loaded == "loads\n" and doctor.returncode == status.GOOD, "a cache that is not used does not matter"
        return
    reason = "the build cache cannot be written" if place != "open to all" else "is not safe to load libraries from"
    assert reason in loaded and reason in doctor.stdout and doctor.returncode == status.NO


@pytest.fixture
def entries(tmp_path: Path) -> tuple[cache_tools.Entry, ...]:
    cache = Cache(tmp_path / "from")
    for name in ("softmax", "rms_norm"):
        (tmp_path / f"{name}.so").write_bytes(random.Random(name).randbytes(300))
        cache.store(BuildKey(name, {"kind": "host", "name": name}), tmp_path / f"{name}.so", 2.0)
    return cache_tools.read_entries(tmp_path / "from")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz", ".tar.xz"])
def test_an_archive_with_any_byte_flipped_is_refused_or_read(
    suffix: str, entries: tuple[cache_tools.Entry, ...], tmp_path: Path
) -> None:
    archive = tmp_path / f"cache{suffix}"
    cache_archive.export_cache(entries, archive)
    whole = archive.read_bytes()
    places = range(len(whole)) if len(whole) < 3000 else random.Random(7).sample(range(len(whole)), 1500)
    refused = 0
    cache = Cache(tmp_path / "to")
    cache_archive.import_cache(archive, cache)  # so that nothing is written later on
    for place in places:
        for flip in (0xFF, 1 << place % 8):
            archive.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            try:
                cache_archive.import_cache(archive, cache)
            except KernelError as error:
                refused += "nothing was changed" in str(error)
    assert refused > len(places) / 20, "most of a plain tar is padding"
    end = len(whole.rstrip(b"\0"))  # behind it a tar has padding alone
    for tenth in range(9):
        archive.write_bytes(whole[: end * tenth // 10])
        with pytest.raises(KernelError):
            cache_archive.import_cache(archive, Cache(tmp_path / f"cut{tenth}"))


@pytest.mark.parametrize("name", ["/dev/null/a.tar", "/proc/a.tar.gz", "/nowhere/a.tar", "folder.tar"])
def test_an_archive_that_cannot_be_written_is_said(
    name: str, entries: tuple[cache_tools.Entry, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.tar").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KernelError, match=r"the archive cannot be written\n  found   .*Errno"):
        cache_archive.export_cache(entries, Path(name))
    assert sorted(tmp_path.iterdir()) == before, "nothing half-written is left"


def test_an_archive_of_names_that_only_tar_could_mean_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(cache_archive.MANIFEST)
        member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "many"}
        tar.addfile(member)
    with pytest.raises(KernelError, match="not a usable cache archive"):
        cache_archive.import_cache(tmp_path / "a.tar", Cache(tmp_path / "to"))
