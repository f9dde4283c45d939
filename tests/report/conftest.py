"""The run that the tests of the report draw."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.small_run import SmallRun, write_small_run


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    """Four trials: 0 completes, 1 is stopped, 2 diverges to NaN without an evaluation, 3 never begins."""
    return write_small_run(tmp_path / "run")
