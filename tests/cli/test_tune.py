"""``cohort tune`` on a tiny task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import cohort


def test_tune_leaves_what_it_promises(folder: Path) -> None:
    run = folder / "run"
    for name in ("task.yaml", "run.db", "report.html", "results.csv", "metrics.jsonl", "best/adapter_config.json"):
        assert (run / name).is_file(), name


def test_a_directory_with_another_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cohort(capsys, "tune", str(folder / "task.yaml"), "-o", str(folder / "run"))
    assert code == 2
    assert "already holds another run" in err
