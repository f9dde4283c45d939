"""Evaluation steps by hand and the cost bound."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.core.errors import InputError
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.evaluation_times import (
    EVALUATION_TOKEN_COST,
    EvaluationPlan,
    EvaluationSettings,
    EvaluationTimes,
    Workload,
    plan_candidate,
    plan_evaluation_rows,
    warmup_steps,
)

SETTINGS = EvaluationSettings()
FULL = EvaluationTimes.of(SETTINGS)


@pytest.mark.parametrize(
    ("planned", "fraction", "expected"),
    [(1, 0.05, 1), (19, 0.05, 1), (20, 0.05, 1), (21, 0.05, 2), (1000, 0.05, 50), (100, 0.07, 7), (3, 1.0, 3)],
)
def test_warmup_steps(planned: int, fraction: float, expected: int) -> None:
    assert warmup_steps(planned, fraction=fraction) == expected


def test_three_within_warmup_then_every_twentieth_and_the_last() -> None:
    steps = FULL.steps(200, warmup=10)
    # thirds of 10 rounded up: 4, 7, 10; then every 10 steps
    assert steps == (4, 7, *range(10, 201, 10))


@pytest.mark.parametrize(("warmup", "within"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (2, 3, 4))])
def test_a_short_warmup_is_evaluated_at_each_distinct_step(warmup: int, within: tuple[int, ...]) -> None:
    steps = FULL.steps(100, warmup=warmup)
    assert tuple(step for step in steps if step <= warmup) == within


def test_training_of_one_step() -> None:
    assert FULL.steps(1, warmup=1) == (1,)


def test_distances_that_do_not_divide_end_with_the_last_step() -> None:
    steps = EvaluationTimes.of(EvaluationSettings(every_fraction=0.3)).steps(10, warmup=1)
    assert steps == (1, 3, 6, 9, 10)


@given(st.integers(1, 3000), st.floats(0.001, 1.0), st.floats(0.001, 1.0), st.integers(1, 5))
def test_every_plan_is_a_legal_candidate(planned: int, warmup: float, every: float, count: int) -> None:
    settings = EvaluationSettings(every_fraction=every, warmup_evaluations=count)
    candidate = plan_candidate(0, planned_steps=planned, warmup_fraction=warmup, settings=settings)
    within = [step for step in candidate.evaluation_steps if step <= candidate.warmup_steps]
    assert len(within) == min(count, candidate.warmup_steps)
    assert candidate.evaluation_steps[-1] == planned


@pytest.mark.parametrize(
    ("planned", "warmup", "steps"),
    [(4, 1, (1, 2)), (4, 1, (1, 1, 4)), (4, 5, (4, 5)), (4, 0, (0, 4)), (4, 4, ())],
)
def test_illegal_candidates_are_refused(planned: int, warmup: int, steps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="trial 3: "):
        Candidate(trial_id=3, planned_steps=planned, warmup_steps=warmup, evaluation_steps=steps)


def workload(trial_id: int, *, planned: int, tokens_per_step: float) -> Workload:
    candidate = plan_candidate(trial_id, planned_steps=planned, warmup_fraction=0.05, settings=SETTINGS)
    return Workload(candidate=candidate, tokens_per_step=tokens_per_step)


def test_rows_by_hand() -> None:
    # one trial of 100 steps of 1,000 tokens, evaluated 22 times on rows of 50 tokens:
    # 0.1 * 100,000 / (0.5 * 22 * 50) = 18.18
    plan = plan_evaluation_rows(
        [workload(0, planned=100, tokens_per_step=1000)], num_available=500, mean_tokens_per_row=50, settings=SETTINGS
    )
    assert (plan.num_rows, plan.thinned) == (18, True)
    assert plan.cost_fraction == pytest.approx(18 * 0.5 * 22 * 50 / 100_000)


def test_stopping_most_after_warmup_affords_fewer_rows() -> None:
    # trained: 5 + 0.25 * 95 = 28.75 steps; evaluations: 3 + 0.25 * 19 = 7.75; 2,875 / (0.5 * 7.75 * 50) = 14.8
    plan = plan_evaluation_rows(
        [workload(0, planned=100, tokens_per_step=1000)],
        num_available=500,
        mean_tokens_per_row=50,
        settings=SETTINGS,
        kept_share=0.25,
    )
    assert plan.num_rows == 14


def test_large_training_uses_all_it_may() -> None:
    work = [workload(0, planned=1000, tokens_per_step=1e6)]
    plan = plan_evaluation_rows(work, num_available=500, mean_tokens_per_row=50, settings=SETTINGS)
    assert (plan.num_rows, plan.thinned) == (128, False)
    plan = plan_evaluation_rows(work, num_available=60, mean_tokens_per_row=50, settings=SETTINGS)
    assert (plan.num_rows, plan.thinned) == (60, False)


def test_a_floor_of_rows_is_kept_and_its_cost_told() -> None:
    work = [workload(0, planned=10, tokens_per_step=10)]
    plan = plan_evaluation_rows(work, num_available=500, mean_tokens_per_row=50, settings=SETTINGS, min_rows=16)
    assert plan.num_rows == 16
    assert plan.cost_fraction > SETTINGS.max_cost_fraction


def test_fewer_times_keep_the_milestones() -> None:
    found = [times.steps(40, warmup=2) for times in FULL.thinner([Fraction(1, 5), Fraction(1, 3)])]
    # a third of 40 steps is 13.3: the first step at or past it
    assert found == [
        (2, *range(4, 14, 2), 14, *range(16, 41, 2)),
        (2, 4, 8, 12, 14, 16, 20, 24, 28, 32, 36, 40),
        (2, 8, 14, 16, 24, 32, 40),
        (2, 8, 14, 20, 40),
        (2, 8, 14, 40),
    ]


def short_sweep() -> list[Workload]:
    """60 trials on 320 rows of 40 tokens: 15 of each batch size 1, 2, 4 and 8."""
    sizes = [1, 2, 4, 8] * 15
    return [workload(i, planned=320 // size, tokens_per_step=40.0 * size) for i, size in enumerate(sizes)]


def planned(work: list[Workload], **keys: Any) -> EvaluationPlan:
    early_exit = EarlyExitSettings()
    return plan_evaluation_rows(
        work,
        num_available=80,
        mean_tokens_per_row=40,
        settings=SETTINGS,
        kept_share=early_exit.kept_share(),
        enough_rows=16,
        **{"milestones": early_exit.milestones, "kept_at": early_exit.kept_at, **keys},
    )


def test_a_short_sweep_keeps_its_share_by_fewer_times_and_then_fewer_rows() -> None:
    plan = planned(short_sweep(), min_rows=8)
    assert plan.cost_fraction <= SETTINGS.max_cost_fraction
    # the warm-up's end, the two later comparisons and the last step, of 22 times
    assert (plan.num_rows, plan.num_evaluations, plan.num_wanted) == (8, 4, 22)
    assert plan.times is not None
    # by hand: all are evaluated once, 40 % at 20 %, 15 % at 65 %, 66 % of these at the end; 21.2 % of the rows are
    # trained on
    expected = 0.5 * 8 * (1 + 0.4 + 0.15 + 0.099) / (320 * (0.05 + 0.4 * 0.15 + 0.15 * 0.45 + 0.099 * 0.35))
    assert plan.cost_fraction == pytest.approx(expected, rel=0.03)


def test_trials_that_are_evaluated_at_one_share_ask_for_it_once() -> None:
    asked: list[float] = []

    def kept_at(share: float) -> float:
        asked.append(share)
        return EarlyExitSettings().kept_at(share)

    assert planned(short_sweep(), min_rows=8, kept_at=kept_at) == planned(short_sweep(), min_rows=8)
    assert len(asked) == len(set(asked)) > 10


def test_times_are_left_out_before_rows() -> None:
    # four times the rows: 16 rows are affordable where trials are evaluated less often
    longer = [replace(work, tokens_per_step=4 * work.tokens_per_step) for work in short_sweep()]
    plan = planned(longer)
    assert plan.num_rows >= 16
    assert 3 < plan.num_evaluations < plan.num_wanted
    assert plan.cost_fraction <= SETTINGS.max_cost_fraction


def test_a_rule_that_needs_every_evaluation_keeps_them() -> None:
    plan = planned(short_sweep(), min_rows=8, milestones=None)
    assert (plan.times, plan.num_rows) == (None, 8)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(1, 1e5)), min_size=1, max_size=5),
    st.integers(1, 1000),
    st.floats(1, 1000),
)
def test_the_bound_holds_whenever_more_than_one_row_is_used(
    sizes: list[tuple[int, float]], num_available: int, mean_tokens: float
) -> None:
    work = [workload(i, planned=planned, tokens_per_step=tokens) for i, (planned, tokens) in enumerate(sizes)]
    plan = plan_evaluation_rows(work, num_available=num_available, mean_tokens_per_row=mean_tokens, settings=SETTINGS)
    assert 1 <= plan.num_rows <= min(num_available, SETTINGS.max_examples)
    evaluated = plan.num_rows * mean_tokens * sum(len(w.candidate.evaluation_steps) for w in work)
    trained = sum(w.candidate.planned_steps * w.tokens_per_step for w in work)
    assert plan.cost_fraction == pytest.approx(EVALUATION_TOKEN_COST * evaluated / trained)
    assert plan.num_rows == 1 or plan.cost_fraction <= SETTINGS.max_cost_fraction * (1 + 1e-12)


def test_all_wrong_settings_are_named() -> None:
    with pytest.raises(InputError) as caught:
        EvaluationSettings(max_examples=0, warmup_evaluations=0, every_fraction=1.5, max_cost_fraction=0)
    assert [str(problem.where) for problem in caught.value.problems] == [
        "evaluation.max_examples",
        "evaluation.warmup_evaluations",
        "evaluation.every_fraction",
        "evaluation.max_cost_fraction",
    ]
