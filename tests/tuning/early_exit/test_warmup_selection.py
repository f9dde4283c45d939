"""Warm-up selection and the second selection, against decisions worked out by hand."""

from __future__ import annotations

import math

import pytest

from cohort.core.events import TrialFailed
from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.early_exit import EarlyExitSettings
from cohort.tuning.early_exit.kinds.patterns import PatternsSettings
from cohort.tuning.replay import replay_curves
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus
from tests.tuning.loss_curves import advance, by_rank, curve, endings

# the paper's: one selection, and any large gap counts
SELECTION = by_rank(
    select_fraction=0.25,
    reselect_fraction=1.0,
    overfitting_patience=2,
    gap_threshold=0.1,
    overfitting_ignores_new_best=False,
)


def of_kind(decisions: tuple[Decision, ...], kind: DecisionKind) -> list[int]:
    return [d.trial_id for d in decisions if d.kind is kind]


def test_a_quarter_of_the_parked_goes_on() -> None:
    losses = [0.5, 0.2, 0.9, 0.7, 0.3]
    report = replay_curves([curve(i, validation=[x] * 4) for i, x in enumerate(losses)], SELECTION)
    assert of_kind(report.decisions, DecisionKind.PARK) == [0, 1, 2, 3, 4]
    # ceil(0.25 * 5) = 2, by loss: 1, 4 | 0, 3, 2
    assert of_kind(report.decisions, DecisionKind.KEEP) == [1, 4]
    assert of_kind(report.decisions, DecisionKind.STOP) == [0, 3, 2]
    third = next(d for d in report.decisions if d.kind is DecisionKind.STOP)
    assert (third.reason, third.rule, third.step) == ("underperforming", "warmup_selection", 1)
    assert dict(third.numbers) == {
        "rung": 0,
        "validation_loss": 0.5,
        "rank": 3,
        "num_ranked": 5,
        "num_kept": 2,
        "kept_share": 0.25,
        "judged_on_arrival": 0.0,
    }
    assert report.steps == {0: 1, 1: 4, 2: 1, 3: 1, 4: 4}
    assert (report.samples_used, report.samples_full) == (11, 20)
    assert report.samples_saved_by == {"underperforming": 9, "completed": 0}


def test_ties_go_to_the_smaller_trial_id() -> None:
    curves = [curve(i, validation=[1.0] * 3) for i in (3, 1, 2, 0)]
    report = replay_curves(curves, SELECTION)
    assert of_kind(report.decisions, DecisionKind.KEEP) == [0]
    assert of_kind(report.decisions, DecisionKind.STOP) == [1, 2, 3], "told in the order of rank"


def test_a_parked_trial_that_fails_is_not_ranked() -> None:
    curves = [curve(i, validation=[1.0 + i] * 4) for i in range(3)]
    study = Study([c.candidate for c in curves], SELECTION)
    advance(study, curves[0])
    advance(study, curves[1])
    assert endings(study.observe(TrialFailed(trial_id=0, step=1, message="its checkpoint is gone"))) == [
        (0, 1, "stop", "failed")
    ]
    advance(study, curves[2])
    assert of_kind(study.decisions, DecisionKind.KEEP) == [1]
    kept = next(d for d in study.decisions if d.kind is DecisionKind.KEEP)
    assert (kept.numbers["rank"], kept.numbers["num_ranked"]) == (1, 2)


def test_it_waits_until_every_candidate_has_parked_or_ended() -> None:
    curves = [curve(i, validation=[1.0 + i] * 4) for i in range(3)]
    study = Study([c.candidate for c in curves], SELECTION)
    advance(study, curves[0])
    advance(study, curves[1])
    assert [study.status(i) for i in range(3)] == [TrialStatus.PARKED, TrialStatus.PARKED, TrialStatus.WAITING]
    assert study.runnable() == (2,)
    decisions = study.observe(TrialFailed(trial_id=2, step=0, message="row 7 has no answer"))
    assert endings(decisions) == [
        (2, 0, "stop", "failed"),
        (0, 1, "keep", "selected"),
        (1, 1, "stop", "underperforming"),
    ]
    assert decisions[0].message == "row 7 has no answer"
    assert study.status(2) is TrialStatus.FAILED
    assert study.runnable() == (0,)


def test_a_detector_frees_its_trial_from_the_ranking() -> None:
    # ranked alone trial 0 would be third; the diverged and the non-finite one are not counted: ceil(0.5 * 2) = 1
    curves = [
        curve(0, validation=[3.0] * 5, warmup_steps=3),
        curve(1, validation=[0.5, 1.0, 1.5, 2.0, 2.5], warmup_steps=3),
        curve(2, validation=[math.nan] * 5, warmup_steps=3),
        curve(3, validation=[4.0] * 5, warmup_steps=3),
    ]
    report = replay_curves(curves, SELECTION.with_keys(ema_weight=1.0, select_fraction=0.5, divergence="slopes"))
    assert of_kind(report.decisions, DecisionKind.KEEP) == [0]
    reasons = {d.trial_id: d.reason for d in report.decisions if d.kind is DecisionKind.STOP}
    assert reasons == {1: "diverging", 2: "non-finite", 3: "underperforming"}
    assert report.best is not None
    assert (report.best.trial_id, report.best.step, report.best.value) == (1, 1, 0.5), "its best still competes"


def test_the_boundary_loss_ranks_not_the_best() -> None:
    curves = [
        curve(0, validation=[0.1, 2.0, 2.0], train=[2.0] * 3, warmup_steps=2),
        curve(1, validation=[3.0, 1.0, 1.0], train=[2.0] * 3, warmup_steps=2),
    ]
    report = replay_curves(curves, by_rank(select_fraction=0.5))
    assert of_kind(report.decisions, DecisionKind.KEEP) == [1]


def test_counters_go_on_across_the_barrier() -> None:
    # gaps of 1 at both evaluations: the first count falls before parking, the second after
    curves = [
        curve(0, validation=[2.0] * 4, train=[1.0] * 4),
        curve(1, validation=[9.0] * 4, train=[9.0] * 4),
    ]
    report = replay_curves(curves, SELECTION.with_keys(ema_weight=1.0, select_fraction=0.5, divergence="slopes"))
    stopped = next(d for d in report.decisions if d.trial_id == 0 and d.kind is DecisionKind.STOP)
    assert (stopped.reason, stopped.step) == ("overfitting", 2)


def test_one_candidate_is_kept() -> None:
    report = replay_curves([curve(0, validation=[1.0, 0.9, 0.8])], SELECTION)
    assert endings(report.decisions) == [
        (0, 1, "park", "warmed up"),
        (0, 1, "keep", "selected"),
        (0, 3, "finish", "completed"),
    ]


def test_selecting_all_parks_nobody() -> None:
    curves = [curve(i, validation=[1.0 + i, 1.0]) for i in range(3)]
    report = replay_curves(curves, by_rank(select_fraction=1.0))
    assert {d.kind for d in report.decisions} == {DecisionKind.NEW_BEST, DecisionKind.FINISH}
    assert report.saved_share == 0


def test_all_stopped_before_the_boundary() -> None:
    curves = [curve(i, validation=[math.inf] * 3, train=[1.0] * 3, warmup_steps=2) for i in range(3)]
    report = replay_curves(curves, SELECTION)
    assert [d.reason for d in report.decisions] == ["non-finite"] * 3
    assert report.best is None


def test_training_no_longer_than_warmup_finishes_unranked() -> None:
    curves = [
        curve(0, validation=[9.0], warmup_steps=1),
        curve(1, validation=[2.0, 2.0], warmup_steps=1),
        curve(2, validation=[1.0, 1.0], warmup_steps=1),
    ]
    report = replay_curves(curves, SELECTION)
    assert endings(report.decisions) == [
        (0, 1, "finish", "completed"),
        (1, 1, "park", "warmed up"),
        (2, 1, "park", "warmed up"),
        (2, 1, "keep", "selected"),
        (1, 1, "stop", "underperforming"),
        (2, 2, "finish", "completed"),
    ]


def test_a_late_trial_is_judged_among_all_boundary_losses_so_far() -> None:
    curves = {i: curve(i, validation=[x] * 3) for i, x in enumerate([4.0, 1.0, 3.0, 2.0, 0.5, 2.5])}
    study = Study([curves[i].candidate for i in range(4)], SELECTION)
    for trial_id in range(4):
        advance(study, curves[trial_id])
    assert study.runnable() == (1,)
    study.add([curves[4].candidate, curves[5].candidate])
    assert study.runnable() == (4, 5, 1), "waiting trials warm up first"
    advance(study, curves[4])  # 0.5: rank 1 of 5, ceil(1.25) = 2 kept
    assert study.status(4) is TrialStatus.RUNNING, "judged on arrival, it need not park"
    advance(study, curves[5])  # 2.5: rank 4 of 6, ceil(1.5) = 2 kept
    last = study.decisions[-1]
    assert (last.trial_id, last.kind, last.reason) == (5, DecisionKind.STOP, "underperforming")
    assert (last.numbers["rank"], last.numbers["num_kept"], last.numbers["judged_on_arrival"]) == (4, 2, 1.0)


def test_shares_are_rounded_up_exactly() -> None:
    # in floats 0.07 * 100 is 7.000000000000001
    curves = [curve(i, validation=[1.0 + i] * 2) for i in range(100)]
    report = replay_curves(curves, by_rank(select_fraction=0.07))
    assert len(of_kind(report.decisions, DecisionKind.KEEP)) == 7


TWICE = by_rank(ema_weight=1.0, warmup_fraction=0.1, reselect_at=0.3)


def test_those_that_went_on_are_compared_once_more() -> None:
    # after the first of ten steps half of 8 goes on: 0 1 2 3; after the third 30 % of 4, rounded up: 3 and 2
    first = [1.0 + i / 10 for i in range(8)]
    curves = [curve(i, validation=[x, x, 2.0 - x, *[2.0 - x] * 7]) for i, x in enumerate(first)]
    report = replay_curves(curves, TWICE)
    assert of_kind(report.decisions, DecisionKind.KEEP) == [0, 1, 2, 3, 3, 2]
    assert of_kind(report.decisions, DecisionKind.STOP) == [4, 5, 6, 7, 1, 0]
    assert report.steps == {0: 3, 1: 3, 2: 10, 3: 10, 4: 1, 5: 1, 6: 1, 7: 1}
    parked = [d.reason for d in report.decisions if d.kind is DecisionKind.PARK]
    assert parked == ["warmed up"] * 8 + ["rung reached"] * 4


@pytest.mark.parametrize(
    "settings",
    [
        TWICE.with_keys(reselect_at=0.1),
        TWICE.with_keys(reselect_at=1.0),
        TWICE.with_keys(reselect_fraction=1.0),
        TWICE.with_keys(select_fraction=1.0),
    ],
)
def test_there_is_none_where_it_would_decide_nothing(settings: EarlyExitSettings) -> None:
    assert isinstance(settings.options, PatternsSettings)
    assert len(settings.options.selections(settings.common)) < 2
    report = replay_curves([curve(i, validation=[1.0 + i] * 10) for i in range(8)], settings)
    assert set(report.steps.values()) <= {1, 10}


def test_the_work_that_is_left_counts_both() -> None:
    # of the 95 % after warm-up: 40 % for 15 points, 15 % for 80
    assert by_rank().kept_share() == pytest.approx((0.4 * 15 + 0.15 * 80) / 95)
    # with the third comparison 15 % for 45 and 66 % of them for 35
    assert EarlyExitSettings().kept_share() == pytest.approx((0.4 * 15 + 0.15 * 45 + 0.099 * 35) / 95)
    assert by_rank(reselect_fraction=1.0).kept_share() == 0.4


THRICE = by_rank(
    ema_weight=1.0,
    warmup_fraction=0.1,
    select_fraction=0.8,
    reselect_at=0.2,
    reselect_fraction=0.75,
    finish_at=0.4,
    finish_fraction=0.5,
    finish_at_least=1,
)


def test_those_that_are_left_are_compared_a_third_time() -> None:
    # of 8 after each of 1, 2 and 4 of ten steps 7, 6 and 3 go on
    curves = [curve(i, validation=[1.0 + i] * 10) for i in range(8)]
    report = replay_curves(curves, THRICE)
    assert [report.steps[i] for i in range(8)] == [10, 10, 10, 4, 4, 4, 2, 1]
    last = [d for d in report.decisions if d.step == 4 and d.kind is DecisionKind.STOP]
    assert {(d.reason, d.rule) for d in last} == {("underperforming", "warmup_selection")}
    numbers = last[0].numbers
    assert (numbers["rung"], numbers["num_ranked"], numbers["num_kept"]) == (2, 6, 3)
    assert (numbers["rank"], numbers["rank_at_end"], numbers["cost_at_end"], numbers["noise"]) == (4, 4, 4.0, 0.0)


def test_a_trial_that_overtakes_by_its_end_is_not_ended_by_the_third() -> None:
    # trial 7 ranks last after four steps, and falls faster than all the others
    falling = [20.0, 7.0, 6.5, 6.4, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5]
    late = [20.0, 12.0, 9.0, 7.5, 5.0, 3.0, 1.0, 0.5, 0.2, 0.1]
    curves = [curve(i, validation=[x + i / 100 for x in falling]) for i in range(5)]
    curves += [curve(7, validation=late)]
    settings = THRICE.with_keys(select_fraction=0.99, reselect_fraction=0.99, finish_noise=0)
    report = replay_curves(curves, settings)
    assert report.steps[7] == 10
    kept = next(d for d in report.decisions if d.trial_id == 7 and d.step == 4 and d.kind is DecisionKind.KEEP)
    assert kept.reason == "undecided"
    # 7.5 after half of the logarithmic way from 12: at the end 7.5 - 1.322 * 4.5
    assert (kept.numbers["rank"], kept.numbers["rank_at_end"]) == (6, 1)
    assert kept.numbers["cost_at_end"] == pytest.approx(7.5 - 1.322 * 4.5)
    assert sorted(t for t, steps in report.steps.items() if steps == 4) == [3, 4]


def test_what_curves_may_keep_is_not_certain_to_stop() -> None:
    # trial 7 of the test above waits at the third comparison, too low by its rank
    falling = [20.0, 7.0, 6.5, 6.4, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5]
    late = [20.0, 12.0, 9.0, 7.5, 5.0, 3.0, 1.0, 0.5, 0.2, 0.1]
    curves = {i: curve(i, validation=[x + i / 100 for x in falling]) for i in range(5)}
    curves[7] = curve(7, validation=late)
    settings = THRICE.with_keys(select_fraction=0.99, reselect_fraction=0.99, finish_noise=0)
    study = Study([each.candidate for each in curves.values()], settings)
    for step in range(4):
        for trial_id, each in curves.items():
            # the first trial has not come to the third comparison yet
            if step < 3 or trial_id > 0:
                advance(study, each)
    assert study.status(7) is TrialStatus.PARKED
    assert study.certain_to_stop() == frozenset()
    advance(study, curves[0])
    assert study.status(7) is not TrialStatus.STOPPED


def test_a_curve_that_jumps_is_not_ended_by_one_low_rank() -> None:
    steady = [[2.0 + i / 10] * 10 for i in range(5)]
    # half a nat up and down from step to step; a steady one as high ends
    jumping = [3.0 + 0.5 * (-1) ** step for step in range(10)]
    settings = THRICE.with_keys(select_fraction=0.99, reselect_fraction=0.99, finish_fraction=0.3, rise_margin=9.0)
    losses = [*steady, jumping]
    report = replay_curves([curve(i, validation=x) for i, x in enumerate(losses)], settings)
    assert report.steps[4] == 4
    assert report.steps[5] == 10
    told = next(d for d in report.decisions if d.trial_id == 5 and d.step == 4 and d.kind is DecisionKind.KEEP)
    assert (told.reason, told.numbers["noise"]) == ("undecided", 3.0)
    without = replay_curves([curve(i, validation=x) for i, x in enumerate(losses)], settings.with_keys(finish_noise=0))
    assert without.steps[5] == 4


def test_a_handful_is_not_compared_a_third_time() -> None:
    settings = THRICE.with_keys(reselect_at_least=8)
    report = replay_curves([curve(i, validation=[1.0 + i] * 10) for i in range(8)], settings)
    assert sorted(report.steps.values()) == [1, *[10] * 7]
    assert settings.kept_at(1.0, num_trials=8) == 7 / 8
