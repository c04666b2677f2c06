"""The same sources give the same bytes, wherever and by whomever they are built."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.guards.archive import differences
from tools.verbs import audit as tools_audit
from tools.verbs import reproduce
from tools.verbs.repair import epoch_of

from .conftest import CHECKOUT, ONLY_TORCH, Run
from .tampering import tampered

pytestmark = [pytest.mark.wheel, pytest.mark.compiler]


def test_the_same_sources_elsewhere_give_the_same_bytes(
    run: Run, tmp_path: Path, repaired: Mapping[str, Path], sdist: Path
) -> None:
    """From the sdist and not from git; another folder, umask, zone, locale and order; every object compiled again."""
    run("tar", "xf", sdist, "-C", tmp_path)
    (unpacked,) = tmp_path.glob("precast-*")
    again = reproduce.build(unpacked, "cpu", tmp_path, reproduce.ELSEWHERE, epoch_of(unpacked, {}), ONLY_TORCH)
    assert list(differences(repaired["cpu"], again)) == []
    assert again.read_bytes() == repaired["cpu"].read_bytes()


def test_a_twin_that_differs_is_named(
    repaired: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = tampered(repaired["cpu"], tmp_path, lambda files: files.update({"precast/errors.py": b"# mine\n"}))
    assert tools_audit.main(["--only-torch", ONLY_TORCH, str(repaired["cpu"]), "--twin", str(twin)]) == 1
    said = capsys.readouterr().out
    assert "precast/errors.py" in said and "# mine" in said
    assert tools_audit.main(["--only-torch", ONLY_TORCH, str(repaired["cpu"]), "--twin", str(repaired["cpu"])]) == 0


def test_the_moments_order_and_modes_of_whoever_packed_it_are_refused(
    repaired: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same files with the same hashes in an archive of somebody's own."""
    copy = tmp_path / repaired["cpu"].name
    with zipfile.ZipFile(repaired["cpu"]) as archive, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as mine:
        for name in reversed(archive.namelist()):
            mine.writestr(name, archive.read(name))
    assert tools_audit.main(["--only-torch", ONLY_TORCH, str(copy)]) == 1
    assert "form" in capsys.readouterr().out
    assert [v.found for v in differences(repaired["cpu"], copy)] == ["another packing: order, moments or compression"]


def test_a_label_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["--label", "cu999"]) == 1
    assert "cu999" in capsys.readouterr().err
    assert (CHECKOUT / "matrix.toml").is_file()
