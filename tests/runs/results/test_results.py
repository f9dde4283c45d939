"""What a run came to: ranking, compute saved, CSV, JSON lines, JSON, status, model card."""

from __future__ import annotations

from pathlib import Path

from cohort.runs.fact_groups import TaskFacts
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.tuning.objective_metric import ObjectiveMetric
from tests.runs.small_run import SmallRun
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run


def test_trials_are_ranked_by_their_best_value(run: SmallRun) -> None:
    results = read_results(run[1].reader)
    assert [entry.trial.trial_id for entry in results.ranked] == [1, 0, 2, 3]
    assert results.ranked[0].why == "validation loss 1.25 at step 1; stopped at step 1: underperforming"
    assert results.ranked[2].why == "no finite validation loss; stopped at step 1: non-finite"
    assert results.ranked[3].why.endswith("not begun")
    assert results.best is not None
    assert results.best.trial_id == 1
    assert results.worst is not None
    assert results.worst.trial_id == 0
    assert results.base_value == 3.0


def test_the_recorded_best_wins_over_the_ranking(run: SmallRun) -> None:
    run[1].set_facts(best_trial_id=0, task=TaskFacts(default_trial_id=0))
    results = read_results(run[1].reader)
    assert results.best is not None
    assert results.best.trial_id == 0
    assert results.default_value == 1.5
    assert results.default_trial == results.best
    run[1].set_facts(default_metrics={"loss": 1.75})
    assert (read_results(run[1].reader).default_value, read_results(run[1].reader).default_trial) == (1.75, None)


def test_a_metric_that_is_maximized_ranks_the_other_way(tmp_path: Path) -> None:
    metric = ObjectiveMetric(name="exact_match", maximize=True)
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=12, steps=60, metric=metric))
    with RunReader.open(path) as reader:
        values = [entry.trial.best_value for entry in read_results(reader).ranked]
    found = [value for value in values if value is not None]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]
