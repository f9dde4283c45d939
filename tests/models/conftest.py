"""A small saved checkpoint that a test may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.models.fixtures.tiny_checkpoints import save_checkpoint


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))
