"""The commands of the install guide, as they stand there: an empty environment, HTTP, and one op that runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from precast._version import __version__
from tests.kit.loopback import served
from tools.verbs import index

from .conftest import CHECKOUT, Run
from .test_install import RUN_ONE

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.torch]


def commands() -> list[str]:
    """Every command for the extra index that the guide shows, for the label that is built here."""
    page = (CHECKOUT / "docs/guides/install.md").read_text().replace("cu129", "cu132")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return list(dict.fromkeys(line for block in blocks for line in block.splitlines() if "--extra-index-url" in line))


def as_pip_is_told(run: Run) -> dict[str, str]:
    """Where this machine's pip looks for packages, in uv's words: uv does not read pip's configuration."""
    names = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
    found = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").stdout.splitlines():
        key, _, text = line.partition("=")
        name = names.get(key.rpartition(".")[2])
        if name is not None:
            found[name] = text.strip("'")
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].split())  # the one that uv splits at commas
    return found


def test_the_guide_shows_one_for_each_installer() -> None:
    assert sorted({command.partition(" ")[0] for command in commands()}) == ["pip", "uv"]


@pytest.mark.long
@pytest.mark.parametrize("command", commands())
def test_a_command_installs_what_runs(
    command: str, run: Run, uv: str, repaired: Mapping[str, Path], tmp_path: Path
) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / repaired["cu132"].name).symlink_to(repaired["cu132"])
    assert index.main([str(house), "--out", str(tmp_path / "site"), "--version", __version__]) == 0
    environment = tmp_path / "venv"
    run(
        *(
            [uv, "venv", "-q", "--python", sys.executable]
            if command.startswith("uv")
            else [sys.executable, "-m", "venv"]
        ),
        environment,
    )
    # The torch of this environment, wherever pip found it: another one would be gigabytes.
    pinned = tmp_path / "constraints.txt"
    pinned.write_text(f"torch=={version('torch')}\n")
    told = {**as_pip_is_told(run), "UV_CONSTRAINT": pinned, "PIP_CONSTRAINT": pinned, "PIP_NO_COMPILE": "1"}
    path = os.pathsep.join([str(environment / "bin"), str(Path(uv).parent), os.environ["PATH"]])
    with served(tmp_path / "site") as (address, asked):
        told |= {"INDEX": address, "VERSION": __version__, "VIRTUAL_ENV": environment, "PATH": path}
        run("sh", "-c", command, **told)
    assert "/cu132/precast/" in asked and asked[-1].endswith(".whl")
    done = run(environment / "bin" / "python", "-c", RUN_ONE, PRECAST_JIT="aot")
    (site,) = environment.glob("lib/python3*/site-packages")
    assert done.stdout.strip() == f"{site}/precast/_C/host/kernels-x86_64.so"
    listed = run(uv, "pip", "list", "--format=freeze", "--python", environment / "bin" / "python").stdout
    assert f"precast=={__version__}+cu132" in listed.splitlines()
