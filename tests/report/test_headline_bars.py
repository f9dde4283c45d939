"""The cards on top: bars, the price and the time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cohort.report import render_report
from cohort.runs.reader import RunReader
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run


def _rendered(path: Path) -> str:
    with RunReader.open(path) as reader:
        return render_report(reader)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("run") / "run.db"
    return _rendered(write_synthetic_run(path, SyntheticRun(trials=60, steps=100)))


def test_a_value_of_a_trial_that_was_stopped_early_says_so(finished: str) -> None:
    # trial 0 has the default hyperparameters and is stopped at the end of its warm-up, 5 of 100 steps
    assert re.search(r"default at 5 % ¹.*¹ stopped early", finished, flags=re.DOTALL)
