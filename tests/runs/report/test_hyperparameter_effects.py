"""Effects: hyperparameters that move together share a drawing, and numbers get an axis."""

from __future__ import annotations

from pathlib import Path

from cohort.core.events import Evaluated
from cohort.runs.reader import RunReader
from cohort.runs.records import NewTrial
from cohort.runs.report.hyperparameter_effects import hyperparameter_effects, varied_parameters
from cohort.runs.results import read_results
from cohort.runs.store import RunStore
from tests.runs.synthetic_run import SyntheticRun, new_best, write_synthetic_run


def test_hyperparameters_that_move_together_share_a_drawing(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=12, steps=40))
    with RunReader.open(path) as reader:
        results = read_results(reader)
    trials = [entry.trial for entry in results.ranked]
    followed = {"lora_alpha": "r"}
    assert varied_parameters(trials, followed=followed) == ["learning_rate", "r", "batch_size"]
    effects = hyperparameter_effects(trials, best=results.best, value_label="validation loss", followed=followed)
    assert [effect.tied for effect in effects] == [(), ("lora_alpha",), ()]
    assert effects[0].spread > effects[2].spread


def test_a_continuous_hyperparameter_gets_a_logarithmic_axis(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    rates = [10 ** (-5 + 3 * n / 29) for n in range(30)]
    store.add_trials(
        [
            NewTrial(trial_id=n, parameters={"learning_rate": rate}, planned_steps=1, seed=0)
            for n, rate in enumerate(rates)
        ]
    )
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(30)]
    store.append(evaluated, map(new_best, evaluated))
    (effect,) = hyperparameter_effects(store.reader.trials(), best=None, value_label="validation loss", followed={})
    assert "1e-5" in effect.drawing
    assert "median" not in effect.drawing
