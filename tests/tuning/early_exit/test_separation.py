"""What trials are compared by, and how likely it is that a comparison is the luck of its rows."""

from __future__ import annotations

import pytest

from cohort.core.events import Evaluated
from cohort.tuning.early_exit.separation import FEWEST_ROWS, Standing, chances
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric

RISK = 0.025
ACCURACY = ObjectiveMetric(name="reward_accuracy", maximize=True)


def standing(trial_id: int, *rows: float) -> Standing:
    return Standing(trial_id=trial_id, cost=sum(rows), loss=sum(rows), rows=rows)


def test_rows_that_agree_tell_trials_apart_and_rows_that_do_not_do_not() -> None:
    best = standing(0, *[1.0] * 16)
    worse, luck = standing(1, *[1.5] * 16), standing(2, *[1.0] * 8, *[0.0] * 3, *[2.0] * 5)
    found = chances([worse, luck], best, risk=RISK)
    assert found[1] == 0.0
    assert found[2] > RISK


def test_ranks_alone_count_with_a_risk_of_one_and_where_no_rows_are_known() -> None:
    best, equal = standing(0, *[1.0] * 16), standing(1, *[1.0] * 16)
    assert chances([equal], best, risk=RISK)[1] == 1.0
    assert chances([equal], best, risk=1.0)[1] == 0.0
    unknown = Standing(trial_id=2, cost=17.0, loss=17.0)
    assert chances([unknown], best, risk=RISK)[2] == 0.0


def test_too_few_rows_tell_nothing_however_clear_they_look() -> None:
    few = FEWEST_ROWS - 1
    assert chances([standing(1, *[9.0] * few)], standing(0, *[1.0] * few), risk=RISK)[1] == 1.0


@pytest.mark.parametrize(("gap", "tolerance", "is_told"), [(0.0, 0.0, False), (0.0, 0.01, True), (-0.02, 0.01, False)])
def test_a_tolerance_settles_trials_that_are_as_good(gap: float, tolerance: float, is_told: bool) -> None:
    # rows of twenty times the noise, which both share, and of other weights: of sums over tokens
    shared = [1.0 + 0.2 * (row % 5) for row in range(16)]
    other = [value * (1.0 + gap + 0.002 * (-1) ** row) for row, value in enumerate(shared)]
    found = chances([standing(1, *other)], standing(0, *shared), risk=RISK, tolerance=tolerance)[1]
    assert (found <= RISK) is is_told


def evaluated(trial_id: int, hits: list[float], losses: list[float]) -> Evaluated:
    return Evaluated(
        trial_id=trial_id,
        step=1,
        validation_loss=sum(losses),
        metrics={"reward_accuracy": sum(hits) / len(hits)},
        row_values={"loss": tuple(losses), "reward_accuracy": tuple(hits)},
    )


def test_trials_are_compared_by_the_metric_where_its_rows_are_known() -> None:
    accurate, confident = evaluated(0, [1.0] * 10, [2.0] * 10), evaluated(1, [0.0] * 10, [1.0] * 10)
    by_metric = [Standing.of(event, metric=ACCURACY) for event in (accurate, confident)]
    assert min(by_metric, key=lambda one: one.order).trial_id == 0
    assert chances(by_metric[1:], by_metric[0], risk=RISK)[1] == 0.0
    by_loss = [Standing.of(event, metric=LOSS) for event in (accurate, confident)]
    assert min(by_loss, key=lambda one: one.order).trial_id == 1
    generated = ObjectiveMetric(name="exact_match", maximize=True)
    assert Standing.of(accurate, metric=generated) == by_loss[0]


def test_the_loss_settles_what_a_counted_metric_does_not_tell() -> None:
    # 6 against 5 of 8 rows, as when trials went after 2 of 30 steps: noise by the count, clear by the loss
    best = evaluated(0, [1, 1, 1, 1, 1, 1, 0, 0], [0.5] * 8)
    other = evaluated(1, [1, 1, 1, 1, 0, 0, 1, 0], [0.7] * 8)
    settled = [Standing.of(event, metric=ACCURACY) for event in (best, other)]
    assert chances(settled[1:], settled[0], risk=RISK)[1] == 0.0
    # losses of another scale, as of trials that differ in beta, must not
    apart = [Standing.of(event, metric=ACCURACY, losses_compare=False) for event in (best, other)]
    assert chances(apart[1:], apart[0], risk=RISK)[1] > RISK


def test_equal_counts_are_ranked_by_the_loss() -> None:
    first, second = evaluated(0, [1.0] * 8, [0.7] * 8), evaluated(1, [1.0] * 8, [0.5] * 8)
    standings = [Standing.of(event, metric=ACCURACY) for event in (first, second)]
    assert [one.trial_id for one in sorted(standings, key=lambda one: one.order)] == [1, 0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nothing_depends_on_the_order_of_arrival(sign: float) -> None:
    others = [standing(n, *(1.0 + sign * 0.1 * n * (row % 3 - 0.9) for row in range(16))) for n in range(1, 6)]
    best = standing(0, *[1.0] * 16)
    assert chances(others, best, risk=RISK) == chances(others[::-1], best, risk=RISK)
