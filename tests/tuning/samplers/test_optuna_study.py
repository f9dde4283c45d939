"""A study that a user keeps is given a run's trials and gives its own to the sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import optuna
import pytest

from cohort.core.errors import InputError
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.parameters import Choice, Configuration, Constant, MultipleOf, Range
from cohort.tuning.samplers import EarlierResult, build_sampler
from cohort.tuning.samplers.optuna_study import StudyEntry, earlier_results, require_study, write_to_study
from cohort.tuning.space import SearchSpace

SPACE = SearchSpace(
    parameters={
        "learning_rate": Range(min=1e-5, max=1e-2, log=True),
        "r": Choice(values=(4, 8, 16)),
        "lora_alpha": Choice(values=(8.0, MultipleOf(parameter="r", factor=2))),
        "seed": Constant(value=0),
    }
)


def entry(trial_id: int, rate: float, value: float | None, *, alpha: float = 8.0) -> StudyEntry:
    parameters = {"learning_rate": rate, "r": 8, "lora_alpha": alpha}
    return StudyEntry(
        trial_id=trial_id, parameters=parameters, value=value, intermediate={2: 3.0}, notes={"cohort_steps": 4}
    )


def test_trials_are_written_once_and_read_back() -> None:
    study = optuna.create_study()
    entries = [entry(0, 1e-3, 1.5, alpha=16.0), entry(1, 1e-4, None)]
    write_to_study(study, entries[:1], space=SPACE, run_id="a")
    write_to_study(study, entries, space=SPACE, run_id="a")
    write_to_study(study, entries[:1], space=SPACE, run_id="b")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.best_params == {"learning_rate": 1e-3, "r": 8}
    assert study.trials[0].intermediate_values == {2: 3.0}
    assert study.trials[0].user_attrs["lora_alpha"] == 16.0
    expected = EarlierResult(values={"learning_rate": 1e-3, "r": 8, "lora_alpha": 16.0}, value=1.5)
    assert earlier_results(study, SPACE) == (expected, expected)
    assert earlier_results(study, SPACE, run_id="a") == (expected,)


def test_a_study_of_another_objective_is_refused() -> None:
    require_study(optuna.create_study(), metric=LOSS)
    with pytest.raises(InputError, match=r"goes to minimize; allowed: one objective, maximize"):
        require_study(optuna.create_study(), metric=ObjectiveMetric(name="exact_match", maximize=True))
    with pytest.raises(InputError, match="minimize and minimize"):
        require_study(optuna.create_study(directions=["minimize"] * 2), metric=LOSS)
    with pytest.raises(InputError, match=r"a value of type str; .*optuna\.create_study"):
        require_study("sqlite:///study.db", metric=LOSS)


def test_a_sampler_that_learns_begins_near_good_earlier_results() -> None:
    # the best rates lie around 1e-3; what lies outside of the space says nothing
    rates = [10 ** (-5 + 3 * index / 19) for index in range(20)]
    earlier = [
        EarlierResult(values={"learning_rate": rate, "r": 8, "lora_alpha": 16}, value=abs(math.log10(rate) + 3))
        for rate in (*rates, 1.0)
    ]
    plain = build_sampler("tpe", SPACE, trials=8, seed=1).propose(8)
    informed = build_sampler("tpe", SPACE, trials=8, seed=1, earlier=earlier).propose(8)
    again = build_sampler("tpe", SPACE, trials=8, seed=1, earlier=earlier).propose(8)
    assert informed == again

    def distance(proposals: Sequence[Configuration]) -> float:
        found = [abs(math.log10(float(configuration["learning_rate"])) + 3) for configuration in proposals]
        return sum(found) / len(found)

    assert distance(informed) < distance(plain)
