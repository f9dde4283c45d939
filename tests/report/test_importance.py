"""Importance as bars, or one line that says why there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.report import importance
from cohort.report.importance import importance_bars
from cohort.runs.reader import RunReader
from cohort.runs.results.results import RunResults, read_results
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run


def _results(tmp_path: Path, *, trials: int) -> RunResults:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=trials, steps=20))
    with RunReader.open(path) as reader:
        return read_results(reader)


def test_the_learning_rate_decides_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = _results(tmp_path, trials=60)
    found = importance_bars(results)
    # lora_alpha follows r, and lora_dropout is the same in all trials
    assert {bar["label"] for bar in found["bars"]} == {"learning_rate", "r", "batch_size"}
    assert found["bars"][0]["label"] == "learning_rate"
    assert "PED-ANOVA" in found["note"]
    monkeypatch.setattr(importance, "is_importance_available", lambda: False)
    assert importance_bars(results) == {"bars": (), "note": "Importance needs optuna (pip install optuna)."}


@pytest.mark.parametrize(("trials", "why"), [(1, "fewer than two vary"), (6, "needs 12 evaluated trials")])
def test_too_little_to_compare_is_said(trials: int, why: str, tmp_path: Path) -> None:
    found = importance_bars(_results(tmp_path, trials=trials))
    assert (found["bars"], why in found["note"]) == ((), True)
