"""A folder with what the smallest task names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.task_files import ROWS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text(ROWS)
    (tmp_path / "model").mkdir()
    return tmp_path
