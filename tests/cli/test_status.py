"""``cohort status`` of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import cohort


def test_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "status", str(folder / "run"))
    assert code == 0
    assert "4 completed" in out
    assert "learning_rate" in out
    code, out, _ = cohort(capsys, "status", str(folder / "run"), "--json")
    status = json.loads(out)
    assert status["state"] == "done"
    assert len(status["trials"]) == 4
