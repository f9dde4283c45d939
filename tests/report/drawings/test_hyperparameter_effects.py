"""Effects: hyperparameters that move together share a drawing, and numbers get an axis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cohort.core.events import Evaluated
from cohort.report.drawings.hyperparameter_effects import hyperparameter_effects, varied_parameters
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.runs.results.results import read_results
from cohort.runs.store import RunStore
from tests.runs.synthetic_run import SyntheticRun, new_best, write_synthetic_run


def test_hyperparameters_that_move_together_share_a_drawing(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.db", SyntheticRun(trials=12, steps=40))
    with RunReader.open(path) as reader:
        results = read_results(reader)
    trials = [entry.trial for entry in results.ranked]
    followed = {"lora_alpha": "r"}
    assert varied_parameters(trials, followed=followed) == ["learning_rate", "r", "batch_size"]
    effects = hyperparameter_effects(
        trials, best=results.best, value_label="validation loss", maximize=False, followed=followed, ranges={}
    )
    assert [effect.tied for effect in effects] == [(), ("lora_alpha",), ()]
    assert effects[0].spread > effects[2].spread


def test_a_continuous_hyperparameter_gets_a_logarithmic_axis(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    rates = [10 ** (-5 + 3 * n / 29) for n in range(30)]
    store.add_trials(
        [
            TrialRecord(trial_id=n, parameters={"learning_rate": rate}, planned_steps=1, seed=0)
            for n, rate in enumerate(rates)
        ]
    )
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(30)]
    store.append(evaluated, map(new_best, evaluated))
    (effect,) = hyperparameter_effects(
        store.reader.trials(), best=None, value_label="validation loss", maximize=False, followed={}, ranges={}
    )
    assert "1e-5" in effect.drawing
    assert "median" not in effect.drawing


def _effect(
    tmp_path: Path, values: list[float], losses: list[float], *, ranges: dict[str, bool], maximize: bool = False
) -> str:
    store = RunStore.create(tmp_path / "run.db")
    trials = [
        TrialRecord(trial_id=n, parameters={"x": value}, planned_steps=1, seed=0) for n, value in enumerate(values)
    ]
    store.add_trials(trials)
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=loss) for n, loss in enumerate(losses)]
    store.append(evaluated, map(new_best, evaluated))
    (effect,) = hyperparameter_effects(
        store.reader.trials(), best=None, value_label="loss", maximize=maximize, followed={}, ranges=ranges
    )
    return effect.drawing


def _marks(drawing: str) -> list[tuple[float, float]]:
    return [
        (float(x), float(y)) for x, y in re.findall(r'transform="translate\(([\d.]+) ([\d.]+)\)" class="mark', drawing)
    ]


def test_a_range_searched_in_the_logarithm_has_a_logarithmic_axis_also_with_few_trials(tmp_path: Path) -> None:
    xs = [x for x, _ in _marks(_effect(tmp_path, [1e-5, 1e-4, 1e-3], [1.0, 2.0, 3.0], ranges={"x": True}))]
    # equal ratios are equal distances, to the tenth of a pixel that the drawing keeps
    assert abs((xs[1] - xs[0]) - (xs[2] - xs[1])) <= 0.2


@pytest.mark.parametrize("maximize", [False, True])
def test_the_best_trials_are_never_clipped(maximize: bool, tmp_path: Path) -> None:
    # one far better and one far worse than all others, whose quartiles are close together
    losses = [0.1, 9.0, *(2.0 + 0.001 * n for n in range(10))]
    ys = [y for _, y in _marks(_effect(tmp_path, [float(n) for n in range(12)], losses, ranges={}, maximize=maximize))]
    best, worst = (ys[1], ys[0]) if maximize else (ys[0], ys[1])
    usual = ys[2]
    assert abs(best - usual) > 5 * abs(worst - usual)
