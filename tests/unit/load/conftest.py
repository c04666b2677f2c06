"""The stand-ins, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import fakes, spawn


@pytest.fixture(scope="session")
def toy_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spawn.library(tmp_path_factory.mktemp("toy") / "toy.so", fakes.HOST_LIBRARY)


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spawn.library(tmp_path_factory.mktemp("nvml") / "libnvml.so", fakes.NVML)


@pytest.fixture(scope="session")
def fake_libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spawn.library(tmp_path_factory.mktemp("cuda") / "libcuda.so", fakes.LIBCUDA)


@pytest.fixture
def c_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of precast/_C."""
    from precast._load import prebuilt

    folder = tmp_path / "_C"
    folder.mkdir()
    monkeypatch.setattr(prebuilt, "C_DIR", folder)
    return folder
