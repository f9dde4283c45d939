"""A finished run and an empty queue, for the tests of verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.cli.main import main
from tests.cli.tiny_task import write_tiny_task


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny task and its finished run."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_task(folder)
    with pytest.raises(SystemExit) as caught:
        main(["tune", str(folder / "task.yaml"), "-o", str(folder / "run")])
    assert caught.value.code in (0, None)
    return folder


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_tiny_task(tmp_path)


@pytest.fixture
def queue(tmp_path: Path) -> str:
    return str(tmp_path / "runs")
