"""What a sampler is told, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.early_exit.rule import UNDERPERFORMING
from cohort.tuning.interventions import ADDED_BY_USER, RESUMED_BY_USER, STOPPED_BY_USER
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.parameters import Configuration
from cohort.tuning.samplers import Sampler, build_sampler
from cohort.tuning.search_feedback import SearchFeedback
from cohort.tuning.space_syntax import parse_space


@dataclass
class Ear(Sampler):
    """Writes down what it is told."""

    told: list[tuple[int, float | None, int]] = field(default_factory=list)

    def propose(self, num: int) -> tuple[Configuration, ...]:
        return ()

    def tell(self, trial_id: int, value: float | None, *, depth: int = 0) -> None:
        self.told.append((trial_id, value, depth))


def decision(trial_id: int, kind: DecisionKind, reason: Reason, **numbers: float) -> Decision:
    return Decision(trial_id=trial_id, step=1, kind=kind, reason=reason, rule="r", numbers=numbers)


def best(trial_id: int, loss: float, **numbers: float) -> Decision:
    return decision(trial_id, DecisionKind.NEW_BEST, Reason("improved"), loss=loss, **numbers)


KEEP = (DecisionKind.KEEP, Reason("selected"))
WEAK = (DecisionKind.STOP, UNDERPERFORMING)
LOG = (
    decision(3, DecisionKind.STOP, Reason("non-finite")),
    best(0, 2.0),
    decision(0, DecisionKind.PARK, Reason("warmed up")),
    best(1, 3.0),
    best(2, 1.0),
    decision(0, *KEEP),
    decision(1, *WEAK),
    decision(2, *KEEP),
    best(0, 1.5),
    decision(2, DecisionKind.STOP, Reason("overfitting")),
    decision(0, *KEEP),
    best(0, 1.25),
    decision(0, DecisionKind.FINISH, Reason("completed")),
)


@pytest.mark.parametrize("lengths", [(13,), tuple(range(1, 14)), (5, 6, 13)])
def test_each_comparison_and_each_end_are_told_however_the_log_is_divided(lengths: tuple[int, ...]) -> None:
    ear = Ear()
    feedback = SearchFeedback(ear)
    ended = [feedback.take_in(LOG[:length]) for length in lengths]
    assert sum(ended) == 4
    assert ear.told == [
        (3, None, 0),
        (0, 2.0, 1),
        (1, 3.0, 1),
        (2, 1.0, 1),
        (2, 1.0, 1),
        (0, 1.5, 2),
        (0, 1.25, 3),
    ]


def test_it_is_told_the_metric_that_the_result_is_chosen_by() -> None:
    ear = Ear()
    feedback = SearchFeedback(ear, metric=ObjectiveMetric(name="accuracy", maximize=True))
    feedback.take_in([best(0, 2.0, accuracy=0.5), decision(0, *KEEP)])
    assert ear.told == [(0, 0.5, 1)]


def share_of_large_rates(*, depth: int) -> float:
    """Share of large rates in what is proposed when those have come to ``depth`` and measured more than the others."""
    space = parse_space({"learning_rate": {"min": 1e-5, "max": 1e-1, "log": True}})
    sampler = build_sampler("tpe", space, trials=60, seed=0)
    for trial_id, configuration in enumerate(sampler.propose(20)):
        is_large = float(configuration["learning_rate"]) > 1e-3
        # deeper in training, the large rates measure a little more than the small ones did early on
        sampler.tell(trial_id, 2.1 if is_large else 2.0, depth=depth if is_large else 1)
    rates = [float(configuration["learning_rate"]) for configuration in sampler.propose(20)]
    return sum(rate > 1e-3 for rate in rates) / len(rates)


def test_who_came_deeper_is_better_whatever_was_measured() -> None:
    assert share_of_large_rates(depth=1) < 0.4
    assert share_of_large_rates(depth=2) > 0.6


def test_a_later_word_on_a_trial_takes_the_place_of_the_earlier() -> None:
    space = parse_space({"learning_rate": {"min": 1e-5, "max": 1e-1, "log": True}})

    def proposed(*, twice: bool) -> list[Configuration]:
        sampler = build_sampler("tpe", space, trials=60, seed=0)
        for trial_id, _ in enumerate(sampler.propose(20)):
            if twice:
                sampler.tell(trial_id, 9.0 - trial_id, depth=1)
            sampler.tell(trial_id, float(trial_id), depth=2)
        return list(sampler.propose(5))

    assert proposed(twice=True) == proposed(twice=False)


def test_trials_of_people_are_none_of_the_samplers_and_a_second_end_makes_no_room() -> None:
    feedback = SearchFeedback(ear := Ear())
    log = (
        best(0, 2.0),
        decision(0, DecisionKind.STOP, STOPPED_BY_USER),
        decision(7, DecisionKind.ADD, ADDED_BY_USER),
        best(7, 1.0),
        decision(7, DecisionKind.FINISH, Reason("completed")),
        decision(0, DecisionKind.RESUME, RESUMED_BY_USER),
        best(0, 1.5),
        decision(0, DecisionKind.FINISH, Reason("completed")),
    )
    assert feedback.take_in(log) == 1
    # the later report takes the place of the earlier
    assert ear.told == [(0, 2.0, 0), (0, 1.5, 1)]
