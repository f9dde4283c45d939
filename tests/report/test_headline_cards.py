"""The cards on top: bars, the price and the time."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from cohort.report.headline_cards import headline_bars
from cohort.report.writing import render_report
from cohort.runs.facts import Activity
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.runs.store import RunStore
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


def test_the_parts_of_the_time_add_up_to_it_and_what_came_before_stands_apart(tmp_path: Path) -> None:
    with closing(RunStore.create(tmp_path / "run.db")) as store:
        seconds = {Activity.TOKENISE: 30.0, Activity.LOAD: 5.0, Activity.TRAIN: 8.0, Activity.COMPARE: 1.0}
        store.set_facts(run_seconds=10.0, seconds=seconds)
        card = headline_bars(read_results(store.reader))["time"]
    assert [(bar.label, bar.value, bar.percent) for bar in card["bars"]] == [
        ("train", "8s", 80.0),
        ("compare", "1s", 10.0),
        ("other", "1s", 10.0),
    ]
    assert card["before"] == "tokenise 30s, load 5s"
