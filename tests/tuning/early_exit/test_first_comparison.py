"""When the trials of a short training are compared, and what that leaves to be evaluated."""

from __future__ import annotations

from fractions import Fraction

import pytest

from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.early_exit.first_comparison import FirstComparison
from cohort.tuning.evaluation_times import EvaluationSettings, EvaluationTimes, plan_candidate


def test_a_long_training_is_compared_where_the_rule_says() -> None:
    first = FirstComparison.of(EarlyExitSettings(), fewest_steps=100)
    assert (first.floor, first.evaluations_in_warmup) == (Fraction(0), 1)
    assert first.milestones == (Fraction(1, 5), Fraction(13, 20))
    assert [first.kept_at(share) for share in (0.05, 0.1, 0.2, 0.3, 0.7)] == pytest.approx([1, 0.4, 0.4, 0.15, 0.099])


def test_a_short_one_is_compared_after_four_steps_of_its_shortest_trial() -> None:
    first = FirstComparison.of(EarlyExitSettings(), fewest_steps=16)
    assert (first.floor, first.evaluations_in_warmup) == (Fraction(1, 4), 0)
    # the second comparison is as far from the first as that from the start
    assert first.milestones == (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
    shares = (0.2, 0.25, 0.3, 0.5, 0.6, 0.75, 0.8)
    assert [first.kept_at(share) for share in shares] == pytest.approx([1, 1, 0.4, 0.4, 0.15, 0.15, 0.099])


def test_the_work_that_a_short_training_leaves_counts_its_own_comparisons() -> None:
    first = FirstComparison.of(EarlyExitSettings(), fewest_steps=16)
    # all train a quarter, 40 % the next, 15 % the third, 66 % of these the last
    trained = 0.25 * (1 + 0.4 + 0.15 + 0.099)
    assert 0.05 + 0.95 * first.kept_share == pytest.approx(trained)
    long = EarlyExitSettings()
    assert FirstComparison.of(long, fewest_steps=100).kept_share == long.kept_share()


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        ("halving", ("1/10", "3/20", "9/20")),
        ("asha", ("1/10", "3/20", "9/20")),
        ("hyperband", ("1/9", "1/3")),
        ("median", ("1/10",)),
        ("none", ()),
    ],
)
def test_each_rule_needs_an_evaluation_where_it_first_compares(rule: str, shares: tuple[str, ...]) -> None:
    first = FirstComparison.of(EarlyExitSettings(rule=rule), fewest_steps=40)
    assert sorted(set(first.milestones or ()) - {Fraction(1, 10)}) == sorted(
        {Fraction(share) for share in shares} - {Fraction(1, 10)}
    )
    assert first.evaluations_in_warmup == (rule == "none")


def test_without_a_comparison_there_is_none_to_put_off() -> None:
    for settings in (EarlyExitSettings(select_fraction=1.0), EarlyExitSettings(rule="patience")):
        first = FirstComparison.of(settings, fewest_steps=10)
        assert (first.floor, first.kept_at(1.0)) == (Fraction(0), 1.0)


def test_no_evaluation_comes_before_a_first_comparison_that_is_put_off() -> None:
    evaluation = EvaluationSettings()
    first = FirstComparison.of(EarlyExitSettings(), fewest_steps=40)
    *_, fewest = EvaluationTimes.of(evaluation).thinner(
        first.milestones or (), warmup_evaluations=first.evaluations_in_warmup
    )
    for planned, steps in ((320, (32, 64, 208, 320)), (40, (4, 8, 26, 40))):
        candidate = plan_candidate(0, planned_steps=planned, warmup_fraction=0.05, settings=evaluation, times=fewest)
        assert candidate.evaluation_steps == steps
